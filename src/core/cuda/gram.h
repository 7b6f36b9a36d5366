#pragma once

#include <cstdint>

#include "dkfac/core/context.h"
#include "dkfac/core/ops.h"
#include "dkfac/core/tensor_view.h"

/// Pieces of Gram matrices. x is f64, f32 or 16-bit, c f64 for f64 and f32 otherwise, neither
/// empty; only the lower triangle of c is read or written.
namespace dkfac::cuda {

/// c = alpha * [x 1]'[x 1] + beta*c but for the corner; whether there is a bias shows in c.
void add_rows(Context& ctx, double alpha, ConstTensorView x, double beta, TensorView c);
/// The corner of a bias: c(d-1,d-1) = alpha*rows + beta*c(d-1,d-1), once and not panel by panel, so
/// that it is exact.
void set_corner(Context& ctx, double alpha, std::int64_t rows, double beta, TensorView c);

/// out[c] = alpha * sum over the rows of x(:, c) + beta*out[c]; out has as many elements as x
/// columns, without gaps.
void column_sums(Context& ctx, double alpha, ConstTensorView x, double beta, TensorView out);

/// `count` matrices [rows, cols] in the memory of `from`: the first where it begins, the next
/// `apart` elements after it, rows `stride` elements from each other. They may overlap.
template <class Void>
[[nodiscard]] BasicTensorView<Void> batch_from(const BasicTensorView<Void>& from,
                                               std::int64_t count, std::int64_t apart,
                                               std::int64_t rows, std::int64_t cols,
                                               std::int64_t stride) {
  return {from.raw(), from.dtype(), {count, rows, cols}, {apart, stride, 1}, from.device()};
}
/// Of such batches: c[i] = a[i]'b[i] + beta*c[i], never rounded to TF32.
void multiply_batches(Context& ctx, ConstTensorView a, ConstTensorView b, double beta,
                      TensorView c);

/// patch_gram by offsets, for a 3x3 kernel with stride 1 and padding 1, but for the corner.
void offset_gram(Context& ctx, const ops::PatchSpec& spec, double alpha, ConstTensorView x,
                 double beta, TensorView c);

/// patches(i, :) = patch first + i of x; with groups, columns are ordered by group first.
void fill_panel(Context& ctx, const ops::PatchSpec& spec, std::int64_t groups, ConstTensorView x,
                std::int64_t first, TensorView patches);

}  // namespace dkfac::cuda
