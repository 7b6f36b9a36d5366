#include "kfac/inverse/residual.h"

#include <array>
#include <cmath>
#include <limits>

#include "dkfac/core/ops.h"

#include "core/shared/host.h"
#include "kfac/inverse/block_triangular.h"
#include "kfac/inverse/probe.h"
#include "vectorized.h"

namespace dkfac::kfac::cpu {
namespace {

/// Sum of a*z in interleaved partial sums, which the compiler can vectorize.
template <class T>
double inner_product(const T* a, const double* z, std::int64_t n) {
  constexpr std::int64_t kLanes = 8;
  std::array<double, kLanes> sums{};
  double* sum = sums.data();
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (std::int64_t lane = 0; lane < kLanes; ++lane)
      sum[lane] += static_cast<double>(a[i + lane]) * z[i + lane];
  double total = 0;
  for (const double lane : sums) total += lane;
  for (; i < n; ++i) total += static_cast<double>(a[i]) * z[i];
  return total;
}

/// y += scale * a.
template <class T>
void add_scaled(const T* a, double scale, std::int64_t n, double* y) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < n; ++i) y[i] += scale * static_cast<double>(a[i]);
}

/// y = S z for the lower triangle of S with row r at row(r).
template <class T, class Row>
void multiply_symmetric(Row&& row, std::int64_t d, const double* z, double* y) {
  for (std::int64_t r = 0; r < d; ++r) {
    const T* a = row(r);
    y[r] = inner_product(a, z, r + 1);
    add_scaled(a, z[r], r, y);
  }
}

/// y = X'(X z) for rows X[n,d].
template <class T>
void multiply_rows(const T* x, std::int64_t n, std::int64_t d, const double* z, double* y) {
  std::fill_n(y, d, 0.0);
  for (std::int64_t r = 0; r < n; ++r) add_scaled(x + r * d, inner_product(x + r * d, z, d), d, y);
}

/// y <- (L L')^-1 y for a blocked L; `part` has room for a block.
template <class T>
void solve_blocked(const T* l, std::int64_t stride, std::int64_t d, double* y, double* part) {
  for_blocks(d, [&](std::int64_t k, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i)
      part[i] = y[k + i] - inner_product(l + (k + i) * stride, y, k);
    for (std::int64_t i = 0; i < n; ++i)
      y[k + i] = inner_product(l + (k + i) * stride + k, part, i + 1);
  });
  for_blocks_backward(d, [&](std::int64_t k, std::int64_t n) {
    std::copy_n(y + k, n, part);
    std::fill_n(y + k, n, 0.0);
    for (std::int64_t i = 0; i < n; ++i)
      add_scaled(l + (k + i) * stride + k, part[i], i + 1, y + k);
    for (std::int64_t i = 0; i < n; ++i) add_scaled(l + (k + i) * stride, -y[k + i], k, y);
  });
}

double norm(const double* x, std::int64_t n) { return std::sqrt(inner_product(x, x, n)); }

template <class T>
double packed_trace(const T* packed, std::int64_t d) {
  double sum = 0;
  for (std::int64_t r = 0; r < d; ++r) sum += static_cast<double>(packed[r * (r + 3) / 2]);
  return sum;
}

template <class T>
constexpr auto kEps = static_cast<double>(std::numeric_limits<T>::epsilon());

template <class T>
class Check {
 public:
  Check(Context& ctx, const Inverted& m, ConstTensorView x)
      : m_(m), rows_(m.average.ndim() == 2), x_(x), d_(x.dim(1)), scratch_(ctx) {
    for (double** v : {&z_, &y_, &r_, &c_, &part_})
      *v = scratch_.take({d_}, DType::f64).template data<double>();
  }
  [[nodiscard]] bool passes(int probe) {
    return dkfac::cpu::vectorized([&] { return try_probe(probe); });
  }

 private:
  [[nodiscard]] bool try_probe(int probe) {
    for (std::int64_t i = 0; i < d_; ++i) z_[i] = probe_sign(i, probe);
    apply(z_, y_);
    multiply(y_, r_);
    for (std::int64_t i = 0; i < d_; ++i) r_[i] = z_[i] - (r_[i] + m_.shift * y_[i]);
    const double size = norm(y_, d_);
    if (!std::isfinite(size) || size == 0) return false;
    const double residual = norm(r_, d_), bar = kResidualBar * norm(z_, d_);
    const double rounding = static_cast<double>(d_) * kEps<T> * (trace() + m_.shift) * size;
    if (!(residual <= bar + rounding)) return false;
    apply(r_, c_);
    return norm(c_, d_) <= kResidualBar * size;
  }
  [[nodiscard]] double trace() const {
    const T* data = m_.average.template data<T>();
    if (!rows_) return packed_trace(data, d_);
    double sum = 0;
    for (std::int64_t i = 0; i < m_.average.numel(); ++i)
      sum += static_cast<double>(data[i]) * static_cast<double>(data[i]);
    return sum;
  }
  /// out = M v.
  void multiply(const double* v, double* out) {
    const T* data = m_.average.template data<T>();
    if (rows_) return multiply_rows(data, m_.average.dim(0), d_, v, out);
    multiply_symmetric<T>([&](std::int64_t r) { return data + r * (r + 1) / 2; }, d_, v, out);
  }
  /// out = X v.
  void apply(const double* v, double* out) {
    const T* data = x_.template data<T>();
    const std::int64_t stride = x_.stride(0);
    if (m_.factored) {
      std::copy_n(v, d_, out);
      return solve_blocked(data, stride, d_, out, part_);
    }
    if (!rows_)
      return multiply_symmetric<T>([&](std::int64_t r) { return data + r * stride; }, d_, v, out);
    multiply_rows(data, x_.dim(0), d_, v, out);
    for (std::int64_t i = 0; i < d_; ++i) out[i] = (v[i] - out[i]) / m_.shift;
  }

  const Inverted& m_;
  bool rows_;
  ConstTensorView x_;
  std::int64_t d_;
  Scratch scratch_;
  double *z_ = nullptr, *y_ = nullptr, *r_ = nullptr, *c_ = nullptr, *part_ = nullptr;
};

}  // namespace

bool inverts(Context& ctx, const Inverted& m, ConstTensorView x) {
  bool good = true;
  with_real("residual", x.dtype(), [&](auto zero) {
    Check<decltype(zero)> check(ctx, m, x);
    for (int probe = 0; probe < kProbes && good; ++probe) good = check.passes(probe);
  });
  return good;
}

bool decomposes(Context& ctx, ConstTensorView average, ConstTensorView vectors,
                ConstTensorView values) {
  const std::int64_t d = vectors.dim(0);
  bool good = true;
  with_real("residual", vectors.dtype(), [&](auto zero) {
    using T = decltype(zero);
    Scratch scratch(ctx);
    const auto take = [&] { return scratch.take({d}, DType::f64).template data<double>(); };
    double *z = take(), *projected = take(), *product = take(), *expected = take();
    const T* packed = average.data<T>();
    const T* w = values.data<T>();
    const double rounding =
        kEigenRounding * static_cast<double>(d) * kEps<T> * packed_trace(packed, d);
    const auto row = [&, q = vectors.data<T>()](std::int64_t r) {
      return q + r * vectors.stride(0);
    };
    // out = Q v, out = Q' v.
    const auto multiply = [&](const double* v, double* out) {
      for (std::int64_t r = 0; r < d; ++r) out[r] = inner_product(row(r), v, d);
    };
    const auto multiply_transposed = [&](const double* v, double* out) {
      std::fill_n(out, d, 0.0);
      for (std::int64_t r = 0; r < d; ++r) add_scaled(row(r), v[r], d, out);
    };
    for (int probe = 0; probe < kProbes && good; ++probe) {
      for (std::int64_t r = 0; r < d; ++r) z[r] = probe_sign(r, probe);
      multiply_transposed(z, projected);
      for (std::int64_t i = 0; i < d; ++i) projected[i] *= static_cast<double>(w[i]);
      multiply(projected, product);
      multiply_symmetric<T>([&](std::int64_t r) { return packed + r * (r + 1) / 2; }, d, z,
                            expected);
      const double size = norm(expected, d);
      for (std::int64_t r = 0; r < d; ++r) product[r] -= expected[r];
      good = norm(product, d) <= kResidualBar * size + rounding;
      multiply(z, product);
      multiply_transposed(product, projected);
      for (std::int64_t i = 0; i < d; ++i)
        good = good && std::abs(projected[i] - z[i]) <= kResidualBar;
    }
  });
  return good;
}

}  // namespace dkfac::kfac::cpu
