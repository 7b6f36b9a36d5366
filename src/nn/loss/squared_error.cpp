#include "dkfac/core/error.h"
#include "dkfac/core/ops.h"
#include "dkfac/nn/loss.h"

#include "nn/backends/backend_loss.h"
#include "nn/loss/output_checks.h"

namespace dkfac::nn {
void squared_error(Context& ctx, ConstTensorView outputs, ConstTensorView targets, double scale,
                   TensorView grad, TensorView loss) {
  check_loss("squared_error", ctx.device(), outputs, targets, scale, grad);
  check_sums("squared_error", "loss is ", ctx.device(), 1, loss);
  if (outputs.numel() == 0) return;
  Scratch scratch(ctx);
  const TensorView residual = scratch.take(outputs.shape(), outputs.dtype());
  const TensorView square = scratch.take(Shape{1}, DType::f64);
  ops::copy(ctx, outputs, residual);
  ops::axpby(ctx, -1, targets, 1, residual);
  ops::dot(ctx, residual, residual, square);
  ops::axpby(ctx, 0.5, square, 1, loss);
  if (!grad.empty()) ops::axpby(ctx, scale, residual, 0, grad);
}

void sample_targets(Context& ctx, ConstTensorView outputs, SampleKey key, TensorView targets) {
  check_draw("sample_targets", ctx.device(), outputs, key, targets);
  kernels::draw_targets(ctx, outputs, key, targets);
}

}  // namespace dkfac::nn
