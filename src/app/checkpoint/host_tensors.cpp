#include "app/checkpoint/host_tensors.h"

#include "dkfac/core/ops.h"

namespace dkfac::app {

namespace {

Tensor pinned_like(Context& ctx, ConstTensorView view) {
  return Tensor::pinned(ctx, view.shape(), view.dtype());
}

void copy(Context& ctx, ConstTensorView from, TensorView to) {
  if (from.numel() > 0) ops::copy(ctx, from, to);
}

/// Returns the view in a copy of `arena` that corresponds to `view` in the arena.
TensorView inside(TensorView view, ConstTensorView arena, TensorView copy) {
  const auto* at = static_cast<const std::byte*>(view.raw());
  const auto* begin = static_cast<const std::byte*>(arena.raw());
  return {static_cast<std::byte*>(copy.raw()) + (at - begin), view.dtype(), view.shape()};
}

}  // namespace

HostTensors::HostTensors(Context& ctx, nn::Model& model)
    : ctx_(ctx), model_(model), all_(model.named_tensors()) {
  if (!ctx.device().is_cuda()) return;
  parameters_ = pinned_like(ctx, model.parameters());
  buffers_ = pinned_like(ctx, model.buffers());
  copy(ctx, model.parameters(), parameters_);
  copy(ctx, model.buffers(), buffers_);
  ctx.stream().synchronize();
  for (nn::NamedTensor& t : all_)
    t.view = t.trained ? inside(t.view, model.parameters(), parameters_)
                       : inside(t.view, model.buffers(), buffers_);
}

void HostTensors::put_back() {
  if (!parameters_.is_set()) return;
  copy(ctx_, parameters_, model_.parameters());
  copy(ctx_, buffers_, model_.buffers());
  // The host copies may be destroyed after this.
  ctx_.stream().synchronize();
}

}  // namespace dkfac::app
