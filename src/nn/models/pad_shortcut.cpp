#include "nn/models/pad_shortcut.h"

#include "nn/backends/backend_elementwise.h"
#include "nn/backends/checks.h"

namespace dkfac::nn {
namespace {

PadShape pad_shape(const Shape& large, const Shape& small, std::int64_t stride) {
  return {large[0], large[1], large[2],
          large[3], small[1], small[2],
          small[3], stride,   (small[3] - large[3]) / 2};
}

}  // namespace

PadShortcut::PadShortcut(std::int64_t in, std::int64_t out, int stride)
    : in_(in), out_(out), stride_(stride) {
  DKFAC_CHECK(in > 0 && out >= in, "[pad_shortcut] in is ", in, " and out ", out,
              "; it adds channels, so 0 < in <= out");
  DKFAC_CHECK(stride > 0, "[pad_shortcut] stride is ", stride, "; it must be > 0");
}

std::string PadShortcut::describe() const {
  return detail::concat("PadShortcut ", in_, "->", out_, "/", stride_);
}

Shape PadShortcut::output_shape(const Shape& input) const {
  DKFAC_CHECK(input.ndim() == 4 && input[3] == in_, "[pad_shortcut] '", name_, "' takes [n, h, w, ",
              in_, "] but the input is ", input);
  return Shape{input[0], (input[1] + stride_ - 1) / stride_, (input[2] + stride_ - 1) / stride_,
               out_};
}

ConstTensorView PadShortcut::forward(Context& ctx, ConstTensorView x, Mode mode) {
  const Shape shape = output_shape(x.shape());
  check_ready("pad_shortcut", *this, ctx, x);
  trained_ = mode == Mode::train;
  input_shape_ = x.shape();
  dtype_ = x.dtype();
  const TensorView y = output_memory(ctx, mode, output_, shape, x.dtype());
  if (y.numel() > 0) kernels::pad_channels(ctx, pad_shape(x.shape(), shape, stride_), x, y);
  return y;
}

ConstTensorView PadShortcut::backward(Context& ctx, ConstTensorView grad_output, InputGrad need) {
  const Shape shape = trained_ ? output_shape(input_shape_) : Shape{};
  check_grad("pad_shortcut", *this, trained_, grad_output, shape, dtype_);
  if (need == InputGrad::skipped) return {};
  const TensorView dx = lend(ctx, input_grad_, input_shape_, dtype_);
  if (dx.numel() > 0) {
    kernels::pad_channels_backward(ctx, pad_shape(input_shape_, shape, stride_), grad_output, dx);
  }
  return dx;
}

ConstTensorView PadShortcut::tangent(Context& ctx, ConstTensorView dx) {
  check_tangent("pad_shortcut", *this, trained_, dx, input_shape_, dtype_);
  if (dx.empty()) return {};
  const Shape shape = output_shape(input_shape_);
  const TensorView dy = lend_tangent(ctx, shape, dtype_);
  if (dy.numel() > 0) kernels::pad_channels(ctx, pad_shape(input_shape_, shape, stride_), dx, dy);
  return dy;
}

}  // namespace dkfac::nn
