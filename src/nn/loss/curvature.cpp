#include "dkfac/core/ops.h"
#include "dkfac/nn/loss.h"

#include "nn/backends/backend_loss.h"
#include "nn/loss/output_checks.h"

namespace dkfac::nn {
namespace {

void check_rows(const char* operation, Device device, ConstTensorView outputs, ConstTensorView v,
                ConstTensorView hv) {
  check_outputs(operation, device, outputs);
  check_like(operation, "tangents", outputs, v);
  check_like(operation, "products", outputs, hv);
}

}  // namespace

void softmax_curvature(Context& ctx, ConstTensorView logits, ConstTensorView v, TensorView hv) {
  check_rows("softmax_curvature", ctx.device(), logits, v, hv);
  if (logits.numel() > 0) kernels::softmax_curvature(ctx, logits, v, hv);
}

void sigmoid_curvature(Context& ctx, ConstTensorView logits, ConstTensorView v, TensorView hv) {
  check_rows("sigmoid_curvature", ctx.device(), logits, v, hv);
  if (logits.numel() > 0) kernels::sigmoid_curvature(ctx, logits, v, hv);
}

void squared_curvature(Context& ctx, ConstTensorView outputs, ConstTensorView v, TensorView hv) {
  check_rows("squared_curvature", ctx.device(), outputs, v, hv);
  if (hv.raw() != v.raw()) ops::copy(ctx, v, hv);
}

}  // namespace dkfac::nn
