#include "core/cpu/matrix.h"

#include "core/backend_linalg.h"
#include "core/shared/parallel.h"

namespace dkfac::cpu {
namespace {

/// row *= beta; 0 does not read the row.
template <class T>
void scale_row(T* row, std::int64_t n, T beta) {
  if (beta == T{0}) {
    std::fill_n(row, n, T{0});
  } else {
    for (std::int64_t j = 0; j < n; ++j) row[j] *= beta;
  }
}

/// Copies the lower triangle to the upper one in tiles, so that neither access is strided.
template <class T>
void copy_tiles_to_upper(Matrix<T> a, std::int64_t d) {
  constexpr std::int64_t kTile = 32;
  for (std::int64_t i0 = 0; i0 < d; i0 += kTile) {
    for (std::int64_t j0 = 0; j0 <= i0; j0 += kTile) {
      const std::int64_t i1 = std::min(i0 + kTile, d);
      for (std::int64_t i = i0; i < i1; ++i) {
        const std::int64_t j1 = std::min(j0 + kTile, i);
        for (std::int64_t j = j0; j < j1; ++j) a(j, i) = a(i, j);
      }
    }
  }
}

void scale(double beta, TensorView c, bool lower) {
  if (beta == 1) return;
  visit_computing(c.dtype(), [&]<class T>(Type<T>) {
    const auto m = matrix_of<T>(c);
    for (std::int64_t i = 0; i < c.dim(0); ++i)
      scale_row(&m(i, 0), lower ? i + 1 : c.dim(1), T(beta));
  });
}

}  // namespace

void symmetrize(Context&, TensorView a) {
  visit_computing(a.dtype(),
                  [&]<class T>(Type<T>) { copy_tiles_to_upper(matrix_of<T>(a), a.dim(0)); });
}

void add_diagonal(Context&, TensorView a, double value) {
  visit_computing(a.dtype(), [&]<class T>(Type<T>) {
    const auto m = matrix_of<T>(a);
    for (std::int64_t i = 0; i < a.dim(0); ++i) m(i, i) += static_cast<T>(value);
  });
}

void scale_matrix(Context&, double beta, TensorView c) { scale(beta, c, false); }

void scale_lower(Context&, double beta, TensorView c) { scale(beta, c, true); }

}  // namespace dkfac::cpu
