#include "core/cpu/offset_gram.h"

#include <algorithm>
#include <array>

#include "core/backend.h"
#include "core/backend_linalg.h"
#include "core/cpu/matrix.h"
#include "core/cpu/offset_sums.h"
#include "core/cpu/self_correlation.h"
#include "core/shared/parallel.h"
#include "core/shared/workers.h"

namespace dkfac::cpu {
namespace {

using ops::Layout;
using ops::PatchSpec;

/// Kernel position, -1, 0 or 1 from its centre.
struct Tap {
  int y, x;
  explicit Tap(int index) : y(index / 3 - 1), x(index % 3 - 1) {}
};

/// Returns the border line that a tap at `position` (of both kernel positions) misses, of the two
/// from `first_line` on: the first for 1, the last for -1.
int missed_line(int first_line, int position) { return first_line + (position < 0 ? 1 : 0); }
int missed_corner(Tap tap) { return 2 * (tap.y < 0 ? 1 : 0) + (tap.x < 0 ? 1 : 0); }

/// One block of c as image - minus[0] - minus[1] + plus; unused terms are matrices of zeros.
template <class T>
struct Block {
  Matrix<const T> image, plus;
  std::array<Matrix<const T>, 2> minus;
};

template <class T>
Block<T> block_of(const OffsetSums& sums, Tap k, Tap l, Matrix<const T> zeros) {
  const auto matrix = [](ConstTensorView view) { return matrix_of<T>(view); };
  Block<T> out{matrix(sums.image(k.y - l.y, k.x - l.x)), zeros, {zeros, zeros}};
  const bool row = k.y == l.y && k.y != 0, column = k.x == l.x && k.x != 0;
  if (row) out.minus[0] = matrix(sums.line(missed_line(0, k.y), k.x - l.x));
  if (column) out.minus[1] = matrix(sums.line(missed_line(2, k.x), k.y - l.y));
  if (row && column) out.plus = matrix(sums.corner(missed_corner(k)));
  return out;
}

/// Assembles the rows of kernel position k: c(k*C + i, j) for j up to the diagonal.
template <class T>
void assemble_rows(const OffsetSums& sums, int k, std::int64_t channels, Matrix<const T> zeros,
                   T alpha, T beta, Matrix<T> c) {
  for (int l = 0; l <= k; ++l) {
    const Block<T> block = block_of(sums, Tap(k), Tap(l), zeros);
    for (std::int64_t i = 0; i < channels; ++i) {
      const T* image = &block.image(i, 0);
      const T* minus0 = &block.minus[0](i, 0);
      const T* minus1 = &block.minus[1](i, 0);
      const T* plus = &block.plus(i, 0);
      T* out = &c(k * channels + i, l * channels);
      const std::int64_t n = l < k ? channels : i + 1;
      for (std::int64_t j = 0; j < n; ++j) {
        const T sum = alpha * (image[j] - minus0[j] - minus1[j] + plus[j]);
        out[j] = beta == T{0} ? sum : sum + beta * out[j];
      }
    }
  }
}

/// Assembles the row of column sums, one kernel position after the other.
template <class T>
void assemble_bias(const OffsetSums& sums, std::int64_t channels, const T* zeros, T alpha, T beta,
                   T* out) {
  for (int k = 0; k < 9; ++k, out += channels) {
    const Tap tap(k);
    const T* image = sums.image_sum().data<T>();
    const T* minus0 = tap.y != 0 ? sums.line_sum(missed_line(0, tap.y)).data<T>() : zeros;
    const T* minus1 = tap.x != 0 ? sums.line_sum(missed_line(2, tap.x)).data<T>() : zeros;
    const T* plus =
        tap.y != 0 && tap.x != 0 ? sums.corner_sum(missed_corner(tap)).data<T>() : zeros;
    for (std::int64_t j = 0; j < channels; ++j) {
      const T sum = alpha * (image[j] - minus0[j] - minus1[j] + plus[j]);
      out[j] = beta == T{0} ? sum : sum + beta * out[j];
    }
  }
}

/// Assembles the lower triangle of c with columns (kernel position, channel), except the corner of
/// a bias.
template <class T>
void assemble(Context& ctx, const OffsetSums& sums, std::int64_t channels, bool bias, double alpha,
              double beta, Matrix<T> c) {
  Scratch scratch(ctx);
  const TensorView zeros = scratch.take({channels}, dtype_of<T>);
  fill(ctx, zeros, 0);
  const Matrix<const T> no_matrix{zeros.data<T>(), 0};  // every row is the same one
  const T a = static_cast<T>(alpha), b = static_cast<T>(beta);
  parallel_parts(9, [&](int k) { assemble_rows(sums, k, channels, no_matrix, a, b, c); });
  if (bias) assemble_bias(sums, channels, no_matrix.data, a, b, &c(9 * channels, 0));
}

/// Lower triangle of c = `ordered` + beta*c, with columns permuted from (kernel position, channel)
/// to (channel, kernel position). `ordered` holds its lower triangle.
template <class T>
void permute_into(Matrix<const T> ordered, std::int64_t channels, bool bias, T beta, Matrix<T> c) {
  const std::int64_t width = 9 * channels;
  const auto place = [&](std::int64_t i) { return i == width ? i : i % 9 * channels + i / 9; };
  parallel_ranges(width + (bias ? 1 : 0), 64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t row = place(i), last = std::min(i + 1, width);
      for (std::int64_t j = 0; j < last; ++j) {
        const std::int64_t col = place(j);
        const T sum = ordered(std::max(row, col), std::min(row, col));
        c(i, j) = beta == T{0} ? sum : sum + beta * c(i, j);
      }
    }
  });
}

template <class T>
void finish(Context& ctx, const PatchSpec& spec, const OffsetSums& sums, bool bias, double alpha,
            double beta, TensorView c) {
  if (spec.layout == Layout::nhwc) {
    return assemble(ctx, sums, spec.c, bias, alpha, beta, matrix_of<T>(c));
  }
  Scratch scratch(ctx);
  const auto ordered = matrix_of<T>(scratch.take(c.shape(), c.dtype()));
  assemble<T>(ctx, sums, spec.c, bias, alpha, 0, ordered);
  permute_into<T>(ordered, spec.c, bias, static_cast<T>(beta), matrix_of<T>(c));
}

}  // namespace

void offset_gram(Context& ctx, const PatchSpec& spec, double alpha, ConstTensorView x, double beta,
                 TensorView c, bool by_onednn) {
  const bool bias = c.dim(0) > spec.width();
  const auto parts = static_cast<int>(std::clamp<std::int64_t>(spec.n, 1, threads()));
  const std::int64_t size = OffsetSums::size(spec.c);
  Scratch scratch(ctx);
  const TensorView all = scratch.take({parts, size}, x.dtype());
  const auto sums = [&](int part) {
    return OffsetSums(all.slice(0, part, 1).reshape({size}), spec.c);
  };
  parallel_workers(ctx, parts, [&](Context& worker, int part) {
    const std::int64_t first = spec.n * part / parts, last = spec.n * (part + 1) / parts;
    if (by_onednn) {
      correlate_borders(worker, spec, x, first, last, bias, sums(part));
    } else {
      correlate_samples(worker, spec, x, first, last, bias, sums(part));
    }
  });
  for (int part = 1; part < parts; ++part) {
    const auto used = [&](int i) { return by_onednn ? sums(i).borders() : sums(i).flat(); };
    axpby(ctx, 1, used(part), 1, used(0));
  }
  if (by_onednn) self_correlate(ctx, spec, x, sums(0).images());
  visit_computing(x.dtype(),
                  [&]<class T>(Type<T>) { finish<T>(ctx, spec, sums(0), bias, alpha, beta, c); });
}

}  // namespace dkfac::cpu
