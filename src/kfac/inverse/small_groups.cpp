#include "kfac/inverse/small_groups.h"

#include <array>
#include <cmath>
#include <limits>

#include "core/shared/host.h"
#include "core/shared/parallel.h"
#include "kfac/inverse/residual.h"

namespace dkfac::kfac {
namespace {

using Square = std::array<double, static_cast<std::size_t>(kSmallGroup* kSmallGroup)>;

/// Replaces the lower triangle of m[n,n] (rows of kSmallGroup) by L with L L' = m. Returns false
/// where m is not positive definite.
bool factorise(double* m, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    double* row = m + i * kSmallGroup;
    for (std::int64_t j = 0; j <= i; ++j) {
      const double* other = m + j * kSmallGroup;
      double sum = row[j];
      for (std::int64_t k = 0; k < j; ++k) sum -= row[k] * other[k];
      if (j < i) {
        row[j] = sum / other[j];
      } else if (sum > 0 && std::isfinite(sum)) {
        row[i] = std::sqrt(sum);
      } else {
        return false;
      }
    }
  }
  return true;
}

/// Writes column c of (L L')^-1, from row c on, into x[n].
void solve_unit(const double* l, std::int64_t n, std::int64_t c, double* x) {
  for (std::int64_t i = c; i < n; ++i) {
    double sum = i == c ? 1 : 0;
    for (std::int64_t k = c; k < i; ++k) sum -= l[i * kSmallGroup + k] * x[k];
    x[i] = sum / l[i * kSmallGroup + i];
  }
  for (std::int64_t i = n - 1; i >= c; --i) {
    for (std::int64_t k = i + 1; k < n; ++k) x[i] -= l[k * kSmallGroup + i] * x[k];
    x[i] /= l[i * kSmallGroup + i];
  }
}

template <class T>
bool invert(const T* packed, std::int64_t n, double shift, T* inverse) {
  Square l, x;
  double trace = 0;
  for (std::int64_t r = 0, i = 0; r < n; ++r) {
    for (std::int64_t c = 0; c <= r; ++c)
      l[static_cast<std::size_t>(r * kSmallGroup + c)] =
          static_cast<double>(packed[i++]) + (c == r ? shift : 0);
    trace += static_cast<double>(packed[i - 1]);
  }
  // Otherwise the rounding of M in these loops could exceed the damping.
  const double rounding = static_cast<double>(n) * std::numeric_limits<double>::epsilon() * trace;
  if (!(shift > rounding / kResidualBar) || !factorise(l.data(), n)) return false;
  const auto largest = static_cast<double>(std::numeric_limits<T>::max());
  for (std::int64_t c = 0; c < n; ++c) {
    double* column = x.data() + c * kSmallGroup;
    solve_unit(l.data(), n, c, column);
    // The diagonal bounds every element of a positive definite matrix. Also false for a NaN.
    if (!(column[c] <= largest)) return false;
  }
  for (std::int64_t c = 0; c < n; ++c)
    for (std::int64_t r = c; r < n; ++r)
      inverse[r * n + c] = inverse[c * n + r] =
          static_cast<T>(x[static_cast<std::size_t>(c * kSmallGroup + r)]);
  return true;
}

/// Preconditions one group, v = [w | b] of `out` rows; b is empty (null) where width == d.
template <class T>
void apply_group(const T* a, const T* g, std::int64_t out, std::int64_t d, std::int64_t width,
                 T* weight, T* bias) {
  std::array<T, static_cast<std::size_t>(kSmallGroup * kSmallGroup)> product;  // v a
  for (std::int64_t r = 0; r < out; ++r) {
    T* row = product.data() + r * kSmallGroup;
    for (std::int64_t c = 0; c < d; ++c) row[c] = width < d ? bias[r] * a[width * d + c] : T{0};
    for (std::int64_t k = 0; k < width; ++k) {
      const T scale = weight[r * width + k];
      for (std::int64_t c = 0; c < d; ++c) row[c] += scale * a[k * d + c];
    }
  }
  for (std::int64_t r = 0; r < out; ++r) {
    for (std::int64_t c = 0; c < d; ++c) {
      T sum{0};
      for (std::int64_t k = 0; k < out; ++k)
        sum += g[r * out + k] * product[static_cast<std::size_t>(k * kSmallGroup + c)];
      (c < width ? weight[r * width + c] : bias[r]) = sum;
    }
  }
}

}  // namespace

InverseResult invert_small(const FactorGroup& block, double shift) {
  InverseResult result;
  with_real("small groups", block.inverse.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const double rounded = static_cast<T>(shift);
    if (!leaves_room(block.inverse.dtype(), rounded)) return;
    if (!invert(block.average.data<T>(), block.inverse.dim(0), rounded, block.inverse.data<T>()))
      return;
    result = {InverseStage::damped, rounded};
  });
  return result;
}

void apply_small(ConstTensorView a, ConstTensorView g, TensorView weight, TensorView bias) {
  const std::int64_t groups = a.dim(0), d = a.dim(1), out = g.dim(1), width = weight.dim(1);
  with_real("small groups", weight.dtype(), [&](auto zero) {
    using T = decltype(zero);
    T* w = weight.data<T>();
    T* b = bias.empty() ? nullptr : bias.data<T>();
    const std::int64_t grain =
        std::max<std::int64_t>(dkfac::cpu::kGrain / (out * d * (out + d)), 1);
    dkfac::cpu::parallel_ranges(groups, grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i)
        apply_group(a.data<T>() + i * d * d, g.data<T>() + i * out * out, out, d, width,
                    w + i * out * width, b == nullptr ? b : b + i * out);
    });
  });
}

}  // namespace dkfac::kfac
