#include <array>
#include <cmath>

#include "core/backend_linalg.h"
#include "core/cpu/reference_blas.h"

namespace dkfac::reference {
namespace {

using cpu::Matrix;
using cpu::matrix_of;

constexpr std::int64_t kBlock = 64;

/// Sum of x*y in eight interleaved sums, which the compiler can vectorise.
template <class T>
T inner_product(const T* x, const T* y, std::int64_t n) {
  constexpr std::int64_t kLanes = 8;
  std::array<T, kLanes> sum{};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      sum[static_cast<std::size_t>(lane)] += x[i + lane] * y[i + lane];
    }
  }
  T total{};
  for (const T lane : sum) total += lane;
  for (; i < n; ++i) total += x[i] * y[i];
  return total;
}

/// Computes one row of L: row[j] = (row[j] - <row, row j of L>_{<j}) / L(j,j) for j < n.
template <class T>
void solve_row(Matrix<const T> l, std::int64_t n, T* row) {
  for (std::int64_t j = 0; j < n; ++j) {
    row[j] = (row[j] - inner_product<T>(row, &l(j, 0), j)) / l(j, j);
  }
}

/// Cholesky factor of a[n,n], row by row. Returns 0, or the order of the first bad minor.
template <class T>
std::int64_t factor_block(Matrix<T> a, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    T* row = &a(i, 0);
    solve_row<T>(a, i, row);
    const T pivot = row[i] - inner_product<T>(row, row, i);
    // Written so that a NaN fails too.
    if (!(pivot > T{0}) || !std::isfinite(pivot)) return i + 1;
    row[i] = std::sqrt(pivot);
  }
  return 0;
}

/// Right-looking blocked Cholesky: factor a diagonal block, solve below it, update what remains.
template <class T>
std::int64_t factor(Context& ctx, Matrix<T> a, std::int64_t d) {
  for (std::int64_t k = 0; k < d; k += kBlock) {
    const std::int64_t n = std::min(kBlock, d - k), rest = d - k - n;
    const Matrix<T> diagonal = a.block(k, k), below = a.block(k + n, k);
    if (const std::int64_t bad = factor_block(diagonal, n); bad != 0) return k + bad;
    for (std::int64_t i = 0; i < rest; ++i) solve_row<T>(diagonal, n, &below(i, 0));
    multiply_add<T>(ctx, rest, rest, n, T{-1}, below, below.transposed(), a.block(k + n, k + n),
                    Part::lower);
  }
  return 0;
}

/// inverse[d,d] = L^-1 with an explicit zero upper triangle. A block of rows I solves
/// L_II X = [-L_I,<I (L^-1)_<I | 1].
template <class T>
void invert_lower(Context& ctx, Matrix<const T> l, std::int64_t d, Matrix<T> inverse) {
  for (std::int64_t i = 0; i < d; ++i) {
    std::fill_n(&inverse(i, 0), d, T{0});
    inverse(i, i) = T{1};
  }
  for (std::int64_t k = 0; k < d; k += kBlock) {
    const std::int64_t n = std::min(kBlock, d - k);
    const Matrix<T> rows = inverse.block(k, 0);
    multiply_add<T>(ctx, n, k, k, T{-1}, l.block(k, 0), inverse, rows, Part::all);
    for (std::int64_t i = 0; i < n; ++i) {
      T* row = &rows(i, 0);
      for (std::int64_t q = 0; q < i; ++q) {
        const T weight = l(k + i, k + q);
        const T* above = &rows(q, 0);
        for (std::int64_t j = 0; j <= k + q; ++j) row[j] -= weight * above[j];
      }
      const T scale = T{1} / l(k + i, k + i);
      for (std::int64_t j = 0; j <= k + i; ++j) row[j] *= scale;
    }
  }
}

/// Lower triangle of c = s's for a lower triangular s with an explicit zero upper triangle.
template <class T>
void lower_of_square(Context& ctx, Matrix<const T> s, std::int64_t d, Matrix<T> c) {
  for (std::int64_t i = 0; i < d; ++i) std::fill_n(&c(i, 0), i + 1, T{0});
  for (std::int64_t k = 0; k < d; k += kBlock) {
    const std::int64_t n = std::min(kBlock, d - k);
    const Matrix<const T> columns = s.block(k, k).transposed();
    multiply_add<T>(ctx, n, k, d - k, T{1}, columns, s.block(k, 0), c.block(k, 0), Part::all);
    multiply_add<T>(ctx, n, n, d - k, T{1}, columns, s.block(k, k), c.block(k, k), Part::lower);
  }
}

/// Returns the position (from 1) of the first zero on the diagonal, or 0.
template <class T>
std::int64_t first_zero_pivot(Matrix<const T> l, std::int64_t d) {
  for (std::int64_t i = 0; i < d; ++i) {
    if (l(i, i) == T{0}) return i + 1;
  }
  return 0;
}

}  // namespace

void potrf(Context& ctx, TensorView a, TensorView info) {
  element::visit_computing(a.dtype(), [&]<class T>(element::Type<T>) {
    *info.data<std::int32_t>() = static_cast<std::int32_t>(factor(ctx, matrix_of<T>(a), a.dim(0)));
  });
}

void potri(Context& ctx, TensorView a, TensorView info) {
  element::visit_computing(a.dtype(), [&]<class T>(element::Type<T>) {
    const std::int64_t d = a.dim(0);
    const Matrix<T> l = matrix_of<T>(a);
    const std::int64_t bad = first_zero_pivot<T>(l, d);
    *info.data<std::int32_t>() = static_cast<std::int32_t>(bad);
    if (bad != 0) return;
    Scratch scratch(ctx);
    const Matrix<T> inverse = matrix_of<T>(scratch.take({d, d}, a.dtype()));
    invert_lower<T>(ctx, l, d, inverse);
    lower_of_square<T>(ctx, inverse, d, l);
  });
}

}  // namespace dkfac::reference
