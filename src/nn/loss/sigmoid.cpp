#include "dkfac/core/error.h"
#include "dkfac/nn/loss.h"

#include "nn/backends/backend_loss.h"
#include "nn/loss/output_checks.h"

namespace dkfac::nn {

void sigmoid_cross_entropy(Context& ctx, ConstTensorView outputs, ConstTensorView targets,
                           double scale, TensorView grad, TensorView sums) {
  constexpr const char* kName = "sigmoid_cross_entropy";
  check_loss(kName, ctx.device(), outputs, targets, scale, grad);
  DKFAC_CHECK(sums.empty() || (sums.shape() == Shape{2} && sums.dtype() == DType::f64 &&
                               sums.is_contiguous() && sums.device() == ctx.device()),
              "[", kName, "] sums are ", sums.dtype(), " ", sums.shape(), " on ", sums.device(),
              "; they must be f64 [2] on ", ctx.device());
  if (outputs.numel() == 0) return;
  kernels::sigmoid_loss(ctx, outputs, targets, scale, grad, sums);
}

void sample_bits(Context& ctx, ConstTensorView outputs, SampleKey key, TensorView targets) {
  check_draw("sample_bits", ctx.device(), outputs, key, targets);
  kernels::draw_bits(ctx, outputs, key, targets);
}

}  // namespace dkfac::nn
