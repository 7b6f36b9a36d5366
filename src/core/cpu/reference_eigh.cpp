#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>

#include "core/backend_linalg.h"
#include "core/cpu/symmetric.h"

/// Symmetric eigenproblem in double precision: Householder reduction to tridiagonal form, then
/// implicit QR steps with Wilkinson's shift (Golub and Van Loan, Matrix Computations, 8.3).
namespace dkfac::reference {
namespace {

using cpu::Matrix;
using cpu::matrix_of;

double inner_product(const double* x, const double* y, std::int64_t n) {
  double even = 0, odd = 0;
  std::int64_t i = 0;
  for (; i + 2 <= n; i += 2) {
    even += x[i] * y[i];
    odd += x[i + 1] * y[i + 1];
  }
  return i < n ? even + odd + x[i] * y[i] : even + odd;
}

/// Workspace of one problem of order n. Rows of `vectors` become the eigenvectors.
struct Tridiagonal {
  std::int64_t n;
  double* diagonal;      ///< [n]
  double* off_diagonal;  ///< [n]; the last one is not used.
  double* work;          ///< [n]
  Matrix<double> full;   ///< [n,n], the symmetric matrix; then row k holds reflector k.
  Matrix<double> vectors;
};

/// Replaces x[n] by the reflector v with (1 - v v') x = (result, 0, ..., 0); v'v is 2, or 0 if x
/// needs no reflection.
double make_reflector(double* x, std::int64_t n) {
  // The matrix is scaled to 1, so dropped values are far below rounding; a denormal sum of squares
  // would make the length of v inaccurate.
  constexpr double kNegligible = 1e-280;
  const double tail = inner_product(x + 1, x + 1, n - 1);
  const double first = x[0];
  if (tail < kNegligible) {
    std::fill_n(x, n, 0.0);
    return first;
  }
  const double norm = std::sqrt(first * first + tail);
  const double result = first > 0 ? -norm : norm;
  x[0] = first - result;
  const double scale = std::sqrt(2.0 / (x[0] * x[0] + tail));
  for (std::int64_t i = 0; i < n; ++i) x[i] *= scale;
  return result;
}

/// a[n,n] -= v w' + w v' with w = a v - (v'a v / 2) v: the reflection of both sides by v.
void reflect_both_sides(Matrix<double> a, std::int64_t n, const double* v, double* w) {
  for (std::int64_t i = 0; i < n; ++i) w[i] = inner_product(&a(i, 0), v, n);
  const double half = inner_product(w, v, n) / 2;
  for (std::int64_t i = 0; i < n; ++i) w[i] -= half * v[i];
  for (std::int64_t i = 0; i < n; ++i) {
    double* row = &a(i, 0);
    for (std::int64_t j = 0; j < n; ++j) row[j] -= v[i] * w[j] + w[i] * v[j];
  }
}

void reduce(Tridiagonal& t) {
  for (std::int64_t k = 0; k + 1 < t.n; ++k) {
    const std::int64_t rest = t.n - k - 1;
    double* v = &t.full(k, k + 1);
    t.diagonal[k] = t.full(k, k);
    t.off_diagonal[k] = make_reflector(v, rest);
    reflect_both_sides(t.full.block(k + 1, k + 1), rest, v, t.work);
  }
  t.diagonal[t.n - 1] = t.full(t.n - 1, t.n - 1);
  t.off_diagonal[t.n - 1] = 0;
}

/// vectors = (product of all reflectors)', built from the last one so that only the trailing block
/// changes.
void accumulate(Tridiagonal& t) {
  for (std::int64_t i = 0; i < t.n; ++i) {
    std::fill_n(&t.vectors(i, 0), t.n, 0.0);
    t.vectors(i, i) = 1;
  }
  for (std::int64_t k = t.n - 2; k >= 0; --k) {
    const std::int64_t rest = t.n - k - 1;
    const double* v = &t.full(k, k + 1);
    for (std::int64_t i = k + 1; i < t.n; ++i) {
      double* row = &t.vectors(i, k + 1);
      const double weight = inner_product(row, v, rest);
      for (std::int64_t j = 0; j < rest; ++j) row[j] -= weight * v[j];
    }
  }
}

/// Eigenvalue of the last 2x2 block that is closer to its last diagonal element.
double wilkinson_shift(const Tridiagonal& t, std::int64_t last) {
  const double half = (t.diagonal[last - 1] - t.diagonal[last]) / 2;
  const double off = t.off_diagonal[last - 1];
  return t.diagonal[last] - off * off / (half + std::copysign(std::hypot(half, off), half));
}

/// One implicit QR step on the unreduced block [first, last]: rotations of neighbouring rows chase
/// the bulge down.
void qr_step(Tridiagonal& t, std::int64_t first, std::int64_t last) {
  double x = t.diagonal[first] - wilkinson_shift(t, last);
  double bulge = t.off_diagonal[first];
  for (std::int64_t k = first; k < last; ++k) {
    const double length = std::hypot(x, bulge);
    const double c = length == 0 ? 1 : x / length, s = length == 0 ? 0 : bulge / length;
    if (k > first) t.off_diagonal[k - 1] = length;
    const double p = t.diagonal[k], q = t.diagonal[k + 1], e = t.off_diagonal[k];
    t.diagonal[k] = c * c * p + 2 * c * s * e + s * s * q;
    t.diagonal[k + 1] = s * s * p - 2 * c * s * e + c * c * q;
    t.off_diagonal[k] = c * s * (q - p) + (c * c - s * s) * e;
    if (k + 1 < last) {
      x = t.off_diagonal[k];
      bulge = s * t.off_diagonal[k + 1];
      t.off_diagonal[k + 1] *= c;
    }
    double* upper = &t.vectors(k, 0);
    double* lower = &t.vectors(k + 1, 0);
    for (std::int64_t j = 0; j < t.n; ++j) {
      const double u = upper[j], l = lower[j];
      upper[j] = c * u + s * l;
      lower[j] = c * l - s * u;
    }
  }
}

/// Zeroes off-diagonal elements below rounding.
void deflate(Tridiagonal& t, std::int64_t last) {
  for (std::int64_t i = 0; i < last; ++i) {
    const double near = std::abs(t.diagonal[i]) + std::abs(t.diagonal[i + 1]);
    if (std::abs(t.off_diagonal[i]) <= std::numeric_limits<double>::epsilon() * near) {
      t.off_diagonal[i] = 0;
    }
  }
}

/// Diagonalises. Returns 0, or the number of off-diagonal elements that did not vanish.
std::int64_t iterate(Tridiagonal& t) {
  constexpr int kStepsPerValue = 60;
  std::int64_t last = t.n - 1;
  int steps = 0;
  while (last > 0) {
    deflate(t, last);
    if (t.off_diagonal[last - 1] == 0) {
      --last;
      steps = 0;
      continue;
    }
    if (++steps > kStepsPerValue) return last;
    std::int64_t first = last - 1;
    while (first > 0 && t.off_diagonal[first - 1] != 0) --first;
    qr_step(t, first, last);
  }
  return 0;
}

/// Loads the symmetric matrix from the lower triangle of a, divided by its largest element, and
/// returns that: squares in the reduction can then neither overflow nor underflow.
template <class T>
double load(Matrix<const T> a, std::int64_t n, Matrix<double> full) {
  double largest = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t j = 0; j <= i; ++j) {
      largest = std::max(largest, std::abs(static_cast<double>(a(i, j))));
    }
  }
  const double scale = largest > 0 ? largest : 1;
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t j = 0; j <= i; ++j) {
      full(i, j) = full(j, i) = static_cast<double>(a(i, j)) / scale;
    }
  }
  return scale;
}

/// Stores eigenvectors in the columns of a in the order of ascending eigenvalues.
template <class T>
void store(const Tridiagonal& t, double scale, std::span<std::int32_t> order, Matrix<T> a, T* w) {
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](std::int32_t l, std::int32_t r) { return t.diagonal[l] < t.diagonal[r]; });
  for (std::int64_t j = 0; j < t.n; ++j) {
    const std::int32_t from = order[static_cast<std::size_t>(j)];
    w[j] = static_cast<T>(scale * t.diagonal[from]);
    for (std::int64_t i = 0; i < t.n; ++i) a(i, j) = static_cast<T>(t.vectors(from, i));
  }
}

template <class T>
std::int64_t decompose(Context& ctx, Matrix<T> a, std::int64_t n, T* w) {
  if (n == 0) return 0;
  if (!cpu::lower_is_finite<T>(a, n)) return n + 1;
  Scratch scratch(ctx);
  const auto vector = [&] { return scratch.take({n}, DType::f64).data<double>(); };
  const auto matrix = [&] { return matrix_of<double>(scratch.take({n, n}, DType::f64)); };
  Tridiagonal t{n, vector(), vector(), vector(), matrix(), matrix()};
  const double scale = load<T>(a, n, t.full);
  reduce(t);
  accumulate(t);
  if (const std::int64_t left = iterate(t); left != 0) return left;
  auto* order = scratch.take({n}, DType::i32).data<std::int32_t>();
  store(t, scale, {order, static_cast<std::size_t>(n)}, a, w);
  return 0;
}

}  // namespace

void eigh(Context& ctx, TensorView a, TensorView w, TensorView info) {
  element::visit_computing(a.dtype(), [&]<class T>(element::Type<T>) {
    *info.data<std::int32_t>() =
        static_cast<std::int32_t>(decompose(ctx, matrix_of<T>(a), a.dim(0), w.data<T>()));
  });
}

}  // namespace dkfac::reference
