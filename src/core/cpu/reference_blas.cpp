#include "core/cpu/reference_blas.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "core/backend_linalg.h"
#include "core/shared/parallel.h"

namespace dkfac::reference {
namespace {

using cpu::Matrix;
using cpu::matrix_of;

// A tile of kRows x kCols of c stays in registers while the contraction runs over kDepth. The
// packed block of b, kDepth x kWidth, stays in the L2 cache.
constexpr std::int64_t kRows = 4;
template <class T>
constexpr std::int64_t kCols = 32 / static_cast<std::int64_t>(sizeof(T));
constexpr std::int64_t kDepth = 256;
constexpr std::int64_t kWidth = 256;
// Least multiplications per thread: some tenths of a millisecond.
constexpr std::int64_t kProducts = std::int64_t{1} << 22;

/// Packs b[depth, width] as strips of kCols columns, each stored row by row and padded with zeros.
template <class T>
void pack_b(Matrix<const T> b, std::int64_t depth, std::int64_t width, T* out) {
  for (std::int64_t j0 = 0; j0 < width; j0 += kCols<T>) {
    const std::int64_t cols = std::min(kCols<T>, width - j0);
    for (std::int64_t p = 0; p < depth; ++p, out += kCols<T>) {
      for (std::int64_t j = 0; j < kCols<T>; ++j) out[j] = j < cols ? b(p, j0 + j) : T{0};
    }
  }
}

/// Packs a[rows <= kRows, depth] column by column, padded with zeros.
template <class T>
void pack_a(Matrix<const T> a, std::int64_t rows, std::int64_t depth, T* out) {
  for (std::int64_t p = 0; p < depth; ++p, out += kRows) {
    for (std::int64_t i = 0; i < kRows; ++i) out[i] = i < rows ? a(i, p) : T{0};
  }
}

template <class T>
using Tile = std::array<std::array<T, kCols<T>>, kRows>;

template <class T>
void multiply_tile(std::int64_t depth, const T* a, const T* b, Tile<T>& tile) {
  Tile<T> sum{};
  for (std::int64_t p = 0; p < depth; ++p, a += kRows, b += kCols<T>) {
    for (std::size_t i = 0; i < kRows; ++i) {
      for (std::size_t j = 0; j < kCols<T>; ++j) sum[i][j] += a[i] * b[j];
    }
  }
  tile = sum;
}

/// Number of columns of row i that are written, of `width`. `corner` is the column minus the row of
/// (0, 0) in c; it determines which elements are in the lower triangle.
std::int64_t columns_of(std::int64_t i, std::int64_t width, Part part, std::int64_t corner) {
  return part == Part::all ? width : std::clamp<std::int64_t>(i - corner + 1, 0, width);
}

/// Rows [begin, end) of c[., width] += alpha * a * (packed b).
template <class T>
void multiply_rows(std::int64_t begin, std::int64_t end, std::int64_t width, std::int64_t depth,
                   T alpha, Matrix<const T> a, const T* packed_b, Matrix<T> c, Part part,
                   std::int64_t corner) {
  std::array<T, kRows * kDepth> packed_a;
  Tile<T> tile;
  for (std::int64_t i0 = begin; i0 < end; i0 += kRows) {
    const std::int64_t rows = std::min(kRows, end - i0);
    const std::int64_t last = i0 + rows - 1 - corner;  // last column in the lower triangle
    if (part == Part::lower && last < 0) continue;
    pack_a(a.block(i0, 0), rows, depth, packed_a.data());
    for (std::int64_t j0 = 0; j0 < width; j0 += kCols<T>) {
      if (part == Part::lower && j0 > last) break;
      multiply_tile(depth, packed_a.data(), packed_b + j0 * depth, tile);
      for (std::int64_t i = 0; i < rows; ++i) {
        const std::int64_t cols = std::min(kCols<T>, columns_of(i0 + i, width, part, corner) - j0);
        for (std::int64_t j = 0; j < cols; ++j) {
          c(i0 + i, j0 + j) +=
              alpha * tile[static_cast<std::size_t>(i)][static_cast<std::size_t>(j)];
        }
      }
    }
  }
}

/// c[m, width] += alpha * sums.
template <class T>
void add_sums(std::int64_t m, std::int64_t width, T alpha, Matrix<const T> sums, Matrix<T> c,
              Part part, std::int64_t corner) {
  cpu::parallel_ranges(m, kProducts / kWidth, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t cols = columns_of(i, width, part, corner);
      for (std::int64_t j = 0; j < cols; ++j) c(i, j) += alpha * sums(i, j);
    }
  });
}

}  // namespace

template <class T>
void multiply_add(Context& ctx, std::int64_t m, std::int64_t n, std::int64_t k, T alpha,
                  Matrix<const T> a, Matrix<const T> b, Matrix<T> c, Part part) {
  Scratch scratch(ctx);
  T* packed = scratch.take({kDepth * kWidth}, dtype_of<T>).template data<T>();
  // Terms that cancel must do so before alpha rounds them.
  const bool apart = k > kDepth && std::abs(alpha) != 1;
  Matrix<T> sums{nullptr, std::min(kWidth, n)};
  if (apart) sums.data = scratch.take({m, sums.row}, dtype_of<T>).template data<T>();
  for (std::int64_t j0 = 0; j0 < n; j0 += kWidth) {
    const std::int64_t width = std::min(kWidth, n - j0);
    if (apart) std::fill_n(sums.data, m * sums.row, T{0});
    for (std::int64_t p0 = 0; p0 < k; p0 += kDepth) {
      const std::int64_t depth = std::min(kDepth, k - p0);
      pack_b(b.block(p0, j0), depth, width, packed);
      const std::int64_t grain = std::max<std::int64_t>(kProducts / (width * depth), 64);
      cpu::parallel_ranges(m, grain, [&](std::int64_t begin, std::int64_t end) {
        multiply_rows(begin, end, width, depth, apart ? T{1} : alpha, a.block(0, p0), packed,
                      apart ? sums : c.block(0, j0), part, j0);
      });
    }
    if (apart) add_sums<T>(m, width, alpha, sums, c.block(0, j0), part, j0);
  }
}

template void multiply_add(Context&, std::int64_t, std::int64_t, std::int64_t, float,
                           Matrix<const float>, Matrix<const float>, Matrix<float>, Part);
template void multiply_add(Context&, std::int64_t, std::int64_t, std::int64_t, double,
                           Matrix<const double>, Matrix<const double>, Matrix<double>, Part);

void gemm(Context& ctx, ops::Trans trans_a, ops::Trans trans_b, double alpha, ConstTensorView a,
          ConstTensorView b, double beta, TensorView c) {
  cpu::scale_matrix(ctx, beta, c);
  element::visit_computing(c.dtype(), [&]<class T>(element::Type<T>) {
    const bool ta = trans_a == ops::Trans::yes, tb = trans_b == ops::Trans::yes;
    const auto ma = matrix_of<T>(a), mb = matrix_of<T>(b);
    multiply_add<T>(ctx, c.dim(0), c.dim(1), a.dim(ta ? 0 : 1), static_cast<T>(alpha),
                    ta ? ma.transposed() : ma, tb ? mb.transposed() : mb, matrix_of<T>(c),
                    Part::all);
  });
}

void syrk(Context& ctx, double alpha, ConstTensorView x, double beta, TensorView c) {
  cpu::scale_lower(ctx, beta, c);
  element::visit_computing(c.dtype(), [&]<class T>(element::Type<T>) {
    const auto m = matrix_of<T>(x);
    multiply_add<T>(ctx, c.dim(0), c.dim(0), x.dim(0), static_cast<T>(alpha), m.transposed(), m,
                    matrix_of<T>(c), Part::lower);
  });
}

}  // namespace dkfac::reference
