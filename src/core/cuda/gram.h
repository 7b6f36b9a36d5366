#pragma once

#include <cstdint>

#include "dkfac/core/context.h"
#include "dkfac/core/ops.h"
#include "dkfac/core/tensor_view.h"

/// Parts of Gram matrices. x is f64, f32 or 16-bit; c is f64 for an f64 x and f32 otherwise;
/// neither is empty. Only the lower triangle of c is read or written.
namespace dkfac::cuda {

/// c = alpha * [x 1]'[x 1] + beta*c except the corner; the width of c determines if there is a
/// bias.
void add_rows(Context& ctx, double alpha, ConstTensorView x, double beta, TensorView c);
/// Sets the corner of a bias: c(d-1,d-1) = alpha*rows + beta*c(d-1,d-1), once and not panel by
/// panel, so that it is exact.
void set_corner(Context& ctx, double alpha, std::int64_t rows, double beta, TensorView c);

/// out[c] = alpha * sum over the rows of x(:, c) + beta*out[c]; out has as many elements as x
/// columns, without gaps.
void column_sums(Context& ctx, double alpha, ConstTensorView x, double beta, TensorView out);

/// Views the memory of `from` as `count` matrices [rows, cols] at distances of `apart` elements,
/// with a row stride of `stride` elements. They may overlap.
template <class Void>
[[nodiscard]] BasicTensorView<Void> batch_from(const BasicTensorView<Void>& from,
                                               std::int64_t count, std::int64_t apart,
                                               std::int64_t rows, std::int64_t cols,
                                               std::int64_t stride) {
  return {from.raw(), from.dtype(), {count, rows, cols}, {apart, stride, 1}, from.device()};
}
/// c[i] = a[i]'b[i] + beta*c[i] for such batches, never rounded to TF32.
void multiply_batches(Context& ctx, ConstTensorView a, ConstTensorView b, double beta,
                      TensorView c);

/// patch_gram by offsets, for a 3x3 kernel with stride 1 and padding 1, except the corner.
void offset_gram(Context& ctx, const ops::PatchSpec& spec, double alpha, ConstTensorView x,
                 double beta, TensorView c);

/// patches(i, :) = patch first + i of x; with groups, columns are ordered by group first.
void fill_panel(Context& ctx, const ops::PatchSpec& spec, std::int64_t groups, ConstTensorView x,
                std::int64_t first, TensorView patches);

}  // namespace dkfac::cuda
