#include "comm/collective/host_device_pair.h"

#include "dkfac/core/ops.h"

namespace dkfac::comm {

HostDevicePair::HostDevicePair(Context& ctx, Shape shape, DType dtype) {
  Context host;
  host_ = Tensor::pinned(ctx, shape, dtype);
  ops::fill(host, host_, 0);
  if (ctx.device().is_cuda()) device_ = Tensor::zeros(ctx, shape, dtype);
}

void HostDevicePair::fetch(Context& ctx) {
  if (device_.is_set() && device_.numel() > 0) ops::copy(ctx, device_, host_);
}

void HostDevicePair::push(Context& ctx) {
  if (device_.is_set() && device_.numel() > 0) ops::copy(ctx, host_, device_);
}

}  // namespace dkfac::comm
