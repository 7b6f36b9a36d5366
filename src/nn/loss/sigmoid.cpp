#include "dkfac/core/error.h"
#include "dkfac/nn/loss.h"

#include "nn/backends/backend_loss.h"
#include "nn/loss/output_checks.h"

namespace dkfac::nn {

void sigmoid_cross_entropy(Context& ctx, ConstTensorView outputs, ConstTensorView targets,
                           double scale, TensorView grad, TensorView sums) {
  constexpr const char* kName = "sigmoid_cross_entropy";
  check_loss(kName, ctx.device(), outputs, targets, scale, grad);
  if (!sums.empty()) check_sums(kName, "sums are ", ctx.device(), 2, sums);
  if (outputs.numel() == 0) return;
  kernels::sigmoid_loss(ctx, outputs, targets, scale, grad, sums);
}

void sample_bits(Context& ctx, ConstTensorView outputs, SampleKey key, TensorView targets) {
  check_draw("sample_bits", ctx.device(), outputs, key, targets);
  kernels::draw_bits(ctx, outputs, key, targets);
}

}  // namespace dkfac::nn
