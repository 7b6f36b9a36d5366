#include "nn/models/pad_shortcut.h"

#include "nn/backends/backend_elementwise.h"

namespace dkfac::nn {
namespace {

PadShape pad_shape(const Shape& large, const Shape& small, std::int64_t stride) {
  return {large[0], large[1], large[2],
          large[3], small[1], small[2],
          small[3], stride,   (small[3] - large[3]) / 2};
}

}  // namespace

PadShortcut::PadShortcut(std::int64_t in, std::int64_t out, int stride)
    : MapLayer("pad_shortcut"), in_(in), out_(out), stride_(stride) {
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

void PadShortcut::compute(Context& ctx, ConstTensorView x, TensorView y) {
  if (y.numel() > 0) kernels::pad_channels(ctx, pad_shape(x.shape(), y.shape(), stride_), x, y);
}

void PadShortcut::compute_gradient(Context& ctx, ConstTensorView dy, TensorView dx) {
  if (dx.numel() > 0)
    kernels::pad_channels_backward(ctx, pad_shape(dx.shape(), dy.shape(), stride_), dy, dx);
}

void PadShortcut::compute_tangent(Context& ctx, ConstTensorView dx, TensorView dy) {
  compute(ctx, dx, dy);
}

}  // namespace dkfac::nn
