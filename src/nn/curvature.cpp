#include "dkfac/nn/curvature.h"

#include <vector>

#include "dkfac/core/ops.h"

#include "nn/loss/output_checks.h"

namespace dkfac::nn {

void curvature_along(Context& ctx, Model& model, ConstTensorView x, const OutputCurvature& loss,
                     std::span<const ConstTensorView> directions, TensorView sums) {
  const std::int64_t count = std::ssize(directions), pairs = count * (count + 1) / 2;
  check_sums("curvature_along", "sums are ", ctx.device(), pairs, sums);
  if (x.numel() == 0) return ops::fill(ctx, sums, 0);
  // Tangents live in the memory of the model, which its next pass takes.
  Scratch scratch(ctx);
  const auto copy_of = [&](ConstTensorView view) {
    const TensorView copy = scratch.take(view.shape(), view.dtype());
    ops::copy(ctx, view, copy);
    return copy;
  };
  const TensorView outputs = copy_of(model.linearize(ctx, x));
  std::vector<TensorView> tangents;
  for (const ConstTensorView& d : directions) tangents.push_back(copy_of(model.tangent(ctx, d)));
  const TensorView hv = scratch.take(outputs.shape(), outputs.dtype());
  std::int64_t pair = 0;
  for (std::size_t i = 0; i < tangents.size(); ++i) {
    loss(ctx, outputs, tangents[i], hv);
    for (std::size_t j = 0; j <= i; ++j) ops::dot(ctx, tangents[j], hv, sums.slice(0, pair++, 1));
  }
}

}  // namespace dkfac::nn
