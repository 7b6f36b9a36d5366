#include "nn/models/pad_shortcut.h"

#include <cstddef>
#include <cstring>

#include "dkfac/core/parallel.h"

#include "nn/checks.h"

namespace dkfac::nn {
namespace {

/// Calls f(offset into the small map, offset into the large one) for every pixel that the shortcut
/// keeps; offsets in pixels.
template <class F>
void for_kept_pixels(const Shape& large, const Shape& small, int stride, F&& f) {
  const std::int64_t rows = small[0] * small[1];
  cpu::parallel_ranges(rows, 1 + cpu::kGrain / (small[2] * small[3]),
                       [&](std::int64_t begin, std::int64_t end) {
                         for (std::int64_t row = begin; row < end; ++row) {
                           const std::int64_t n = row / small[1], h = row % small[1] * stride;
                           for (std::int64_t w = 0; w < small[2]; ++w) {
                             f(row * small[2] + w, (n * large[1] + h) * large[2] + w * stride);
                           }
                         }
                       });
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
  const std::size_t size = size_of(x.dtype());
  const std::size_t from_bytes = static_cast<std::size_t>(in_) * size;
  const std::size_t to_bytes = static_cast<std::size_t>(out_) * size;
  const std::size_t before = static_cast<std::size_t>((out_ - in_) / 2) * size;
  const auto* from = static_cast<const std::byte*>(x.raw());
  auto* to = static_cast<std::byte*>(y.raw());
  for_kept_pixels(x.shape(), shape, stride_, [&](std::int64_t small, std::int64_t large) {
    std::byte* pixel = to + static_cast<std::size_t>(small) * to_bytes;
    std::memset(pixel, 0, before);
    std::memcpy(pixel + before, from + static_cast<std::size_t>(large) * from_bytes, from_bytes);
    std::memset(pixel + before + from_bytes, 0, to_bytes - before - from_bytes);
  });
  return y;
}

ConstTensorView PadShortcut::backward(Context& ctx, ConstTensorView grad_output, InputGrad need) {
  const Shape shape = trained_ ? output_shape(input_shape_) : Shape{};
  check_grad("pad_shortcut", *this, trained_, grad_output, shape, dtype_);
  if (need == InputGrad::skipped) return {};
  const TensorView dx = lend(ctx, input_grad_, input_shape_, dtype_);
  const std::size_t size = size_of(dtype_);
  const std::size_t to_bytes = static_cast<std::size_t>(in_) * size;
  const std::size_t from_bytes = static_cast<std::size_t>(out_) * size;
  const std::size_t before = static_cast<std::size_t>((out_ - in_) / 2) * size;
  const auto* from = static_cast<const std::byte*>(grad_output.raw());
  auto* to = static_cast<std::byte*>(dx.raw());
  if (stride_ > 1) std::memset(to, 0, dx.bytes());
  for_kept_pixels(input_shape_, shape, stride_, [&](std::int64_t small, std::int64_t large) {
    std::memcpy(to + static_cast<std::size_t>(large) * to_bytes,
                from + static_cast<std::size_t>(small) * from_bytes + before, to_bytes);
  });
  return dx;
}

}  // namespace dkfac::nn
