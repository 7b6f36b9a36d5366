#include "nn/backends/conv_backend.h"

#include "dkfac/core/error.h"

#include "nn/backends/backend_elementwise.h"

namespace dkfac::nn {

ConvBackends::ConvBackends()
    : reference_(cpu::make_reference_conv()),
      fast_(cpu::make_onednn_conv()),
      products_(cpu::make_onednn_products()),
      widened_reference_(cpu::make_widened_conv(*reference_)),
      widened_fast_(fast_ ? cpu::make_widened_conv(*fast_) : nullptr),
      device_(cuda::make_cudnn_conv()),
      device_products_(cuda::make_product_conv()) {}

ConvBackend& ConvBackends::choose(const Context& ctx, const ConvShape& shape, ConvPass pass) const {
  if (ctx.device().is_cuda()) return on_device(ctx, shape, pass);
  const bool fast = fast_ && ctx.backend() == Backend::fast;
  if (fast && products_->takes(shape)) return *products_;
  if (fast && fast_->takes(shape)) return *fast_;
  if (reference_->takes(shape)) return *reference_;
  return fast ? *widened_fast_ : *widened_reference_;
}

ConvBackend& ConvBackends::on_device(const Context& ctx, const ConvShape& shape,
                                     ConvPass pass) const {
  if (device_ && device_->takes(shape) && device_->takes_pass(ctx, shape, pass)) return *device_;
  if (device_products_ && device_products_->takes(shape)) return *device_products_;
  throw DeviceError("[nn] this build has no CUDA; keep the network on the cpu");
}

ReorderCount ConvBackends::reorders() const {
  ReorderCount all;
  for (const ConvBackend* backend : {fast_.get(), device_.get(), device_products_.get()}) {
    const ReorderCount some = backend != nullptr ? backend->reorders() : ReorderCount{};
    all.reorders += some.reorders;
    all.bytes += some.bytes;
  }
  return all;
}

std::size_t ConvBackends::held_bytes() const { return device_ ? device_->held_bytes() : 0; }

void sum_pixels(Context& ctx, ConstTensorView dy, TensorView dbias) {
  kernels::sum_rows(ctx, dy, dbias);
}

void conv_tangent(Context& ctx, const ConvBackends& backends, ConvShape shape,
                  const ConvTangent& of, TensorView y) {
  if (of.dx.empty() && of.dweight.empty()) return kernels::repeat_row(ctx, of.dbias, y);
  const auto product = [&](ConstTensorView x, ConstTensorView weight, ConstTensorView bias,
                           TensorView to) {
    shape.bias = !bias.empty();
    backends.choose(ctx, shape).forward(ctx, shape, x, weight, bias, to);
  };
  if (of.dweight.empty()) return product(of.dx, of.weight, of.dbias, y);
  product(of.x, of.dweight, of.dbias, y);
  if (of.dx.empty()) return;
  Scratch scratch(ctx);
  const TensorView through = scratch.take(y.shape(), y.dtype());
  product(of.dx, of.weight, {}, through);
  kernels::add(ctx, y, through, y);
}

}  // namespace dkfac::nn
