#include "nn/backends/cpu/conv_points.h"

#include <algorithm>

#include "dkfac/core/ops.h"

#include "nn/backends/backend_elementwise.h"
#include "nn/backends/cpu/parallel.h"
#include "nn/backends/dtype.h"

namespace dkfac::nn::cpu {
namespace {

using ops::Trans;

template <class View>
View matrix_of(View pixels) {
  return pixels.reshape(Shape{pixels.numel() / pixels.dim(3), pixels.dim(3)});
}

template <class View>
View weight_matrix(const ConvShape& s, View weight) {
  return weight.reshape(Shape{s.out, s.in});
}

Shape rows_read(const ConvShape& s) { return {s.n * s.out_h * s.out_w, s.in}; }

/// Returns the pixels that the convolution reads, as rows.
ConstTensorView gather(Context& ctx, Scratch& scratch, const ConvShape& s, ConstTensorView x) {
  if (s.is_dense()) return matrix_of(x);
  const TensorView rows = scratch.take(rows_read(s), x.dtype());
  ops::im2col(ctx, {s.n, s.h, s.w, s.in, s.window}, x, rows);
  return rows;
}

/// Writes one line of an image from the rows of its pixels that were read, with zeros between them.
template <class T>
void spread_line(const ConvShape& s, const T* rows, T* line) {
  for (std::int64_t w = 0; w < s.w; ++w, line += s.in) {
    if (w % s.window.stride_w == 0 && w / s.window.stride_w < s.out_w) {
      std::copy_n(rows + w / s.window.stride_w * s.in, s.in, line);
    } else {
      std::fill_n(line, s.in, T{0});
    }
  }
}

void spread(const ConvShape& s, ConstTensorView rows, TensorView dx) {
  visit_computing(dx.dtype(), [&]<class T>(Type<T>) {
    const T* from = rows.data<T>();
    T* to = dx.data<T>();
    const std::int64_t line = s.w * s.in;
    each(s.n * s.h, line, [=, &s](std::int64_t i) {
      const std::int64_t n = i / s.h, h = i % s.h, oh = h / s.window.stride_h;
      if (h % s.window.stride_h == 0 && oh < s.out_h) {
        spread_line(s, from + (n * s.out_h + oh) * s.out_w * s.in, to + i * line);
      } else {
        std::fill_n(to + i * line, line, T{0});
      }
    });
  });
}

}  // namespace

bool is_pointwise(const ConvShape& s) {
  const ops::Window& k = s.window;
  return k.taps() == 1 && s.groups == 1 && k.pad_h + k.pad_w + k.extra_h + k.extra_w == 0;
}

bool has_few_pixels(const ConvShape& s) {
  constexpr std::int64_t kFewPixels = 256, kFewPoints = 1024, kLargeWeights = std::int64_t{1} << 18;
  if (s.groups != 1) return false;
  const std::int64_t pixels = s.n * s.out_h * s.out_w;
  if (is_pointwise(s)) return pixels < kFewPoints;
  return pixels < kFewPixels && s.out * s.patch() >= kLargeWeights;
}

void pointwise_forward(Context& ctx, const ConvShape& s, ConstTensorView x, ConstTensorView weight,
                       ConstTensorView bias, TensorView y) {
  Scratch scratch(ctx);
  // The product is added to rows that already contain the bias, without a second pass over y.
  if (!bias.empty()) repeat_row(ctx, bias, y);
  ops::gemm(ctx, Trans::no, Trans::yes, 1.0, gather(ctx, scratch, s, x), weight_matrix(s, weight),
            bias.empty() ? 0.0 : 1.0, matrix_of(y));
}

void pointwise_backward_weights(Context& ctx, const ConvShape& s, ConstTensorView x,
                                ConstTensorView dy, TensorView dweight, TensorView dbias) {
  Scratch scratch(ctx);
  ops::gemm(ctx, Trans::yes, Trans::no, 1.0, matrix_of(dy), gather(ctx, scratch, s, x), 0.0,
            weight_matrix(s, dweight));
  if (!dbias.empty()) sum_pixels(ctx, dy, dbias);
}

void pointwise_backward_data(Context& ctx, const ConvShape& s, ConstTensorView dy,
                             ConstTensorView weight, TensorView dx) {
  Scratch scratch(ctx);
  const TensorView rows = s.is_dense() ? matrix_of(dx) : scratch.take(rows_read(s), dx.dtype());
  ops::gemm(ctx, Trans::no, Trans::no, 1.0, matrix_of(dy), weight_matrix(s, weight), 0.0, rows);
  if (!s.is_dense()) spread(s, rows, dx);
}

}  // namespace dkfac::nn::cpu
