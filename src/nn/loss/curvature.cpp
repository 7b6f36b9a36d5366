#include "dkfac/core/error.h"
#include "dkfac/core/ops.h"
#include "dkfac/nn/loss.h"

#include "nn/backends/backend_loss.h"

namespace dkfac::nn {
namespace {

void check_rows(const char* operation, Device device, ConstTensorView outputs, ConstTensorView v,
                ConstTensorView hv) {
  DKFAC_CHECK(
      outputs.ndim() == 2 && (outputs.dtype() == DType::f64 || outputs.dtype() == DType::f32), "[",
      operation, "] outputs are ", outputs.dtype(), " ", outputs.shape(),
      "; they must be f64 or f32 [n, outputs]");
  for (const ConstTensorView& x : {outputs, v, ConstTensorView(hv)})
    DKFAC_CHECK(x.shape() == outputs.shape() && x.dtype() == outputs.dtype() && x.is_contiguous() &&
                    x.device() == device,
                "[", operation, "] a tensor is ", x.dtype(), " ", x.shape(), " on ", x.device(),
                "; all must be ", outputs.dtype(), " ", outputs.shape(), " without gaps, on ",
                device);
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
