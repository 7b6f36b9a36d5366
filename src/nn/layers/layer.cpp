#include "dkfac/nn/layer.h"

#include <algorithm>

#include "nn/backends/dtype.h"
#include "nn/backends/workspace.h"
#include "nn/layers/he_normal.h"

namespace dkfac::nn {
namespace {

void set_all(TensorView x, double value) {
  for_dtype(x.dtype(), [&](auto t) {
    using T = decltype(t);
    std::fill_n(x.data<T>(), x.numel(), static_cast<T>(value));
  });
}

void set_initial(Parameter& p, Random& random) {
  if (p.role == Role::weight) {
    fill_he_normal(p.value, random);
  } else {
    set_all(p.value, p.role == Role::norm_scale ? 1.0 : 0.0);
  }
}

}  // namespace

void Layer::initialize(Random& random) {
  for (Parameter& p : parameters_) set_initial(p, random);
  for (Buffer& buffer : buffers_) set_all(buffer.value, buffer.initial);
}

Shape Layer::trace(const Shape& input,
                   const std::function<void(const Layer&, const Shape&)>& f) const {
  const Shape output = output_shape(input);
  f(*this, output);
  return output;
}

TensorView Layer::ensure(Context& ctx, Tensor& tensor, const Shape& shape, DType dtype) {
  held_bytes_ -= tensor.bytes();  // They are gone when there is no memory for more.
  const TensorView view = view_in(ctx, tensor, shape, dtype);
  held_bytes_ += tensor.bytes();
  return view;
}

TensorView Layer::lend(Context& ctx, Tensor& own, const Shape& shape, DType dtype) {
  return workspace_ != nullptr ? workspace_->take(ctx, shape, dtype)
                               : ensure(ctx, own, shape, dtype);
}

TensorView Layer::output_memory(Context& ctx, Mode mode, Tensor& own, const Shape& shape,
                                DType dtype) {
  return mode == Mode::train ? ensure(ctx, own, shape, dtype) : lend(ctx, own, shape, dtype);
}

TensorView Layer::lent(ConstTensorView view) {
  return workspace_ != nullptr ? workspace_->writable(view) : TensorView{};
}

void Layer::release(ConstTensorView view) {
  if (workspace_ != nullptr) workspace_->release(view);
}

}  // namespace dkfac::nn
