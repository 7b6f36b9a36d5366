#include <algorithm>

#include "dkfac/core/ops.h"

#include "nn/backends/backend_elementwise.h"
#include "nn/backends/conv_backend.h"
#include "nn/backends/cpu/conv_points.h"
#include "nn/backends/cpu/parallel.h"
#include "nn/backends/dtype.h"

namespace dkfac::nn::cpu {
namespace {

using ops::Trans;

/// Limits of the patches in memory at once; a panel is as many whole images as fit, but enough rows
/// for a product.
constexpr std::int64_t kPanelElements = std::int64_t{1} << 18, kPanelRows = 256;

/// Patches of one group.
ops::PatchSpec patches_of(const ConvShape& s, std::int64_t images) {
  return {images, s.h, s.w, s.group_in(), s.window};
}

/// Calls body(first image, images, group, patches[rows,patch]) for each panel of images and each
/// group.
template <class Body>
void for_panels(Context& ctx, const ConvShape& s, DType dtype, Body&& body) {
  const std::int64_t rows = s.out_h * s.out_w;
  const std::int64_t fitting = kPanelElements / std::max<std::int64_t>(rows * s.patch(), 1);
  const std::int64_t least = (kPanelRows + rows - 1) / rows;
  const std::int64_t most = std::clamp<std::int64_t>(std::max(fitting, least), 1, s.n);
  Scratch scratch(ctx);
  const TensorView patches = scratch.take(Shape{most * rows, s.patch()}, dtype);
  for (std::int64_t first = 0; first < s.n; first += most) {
    const std::int64_t images = std::min(most, s.n - first);
    for (std::int64_t g = 0; g < s.groups; ++g) {
      body(first, images, g, patches.slice(0, 0, images * rows));
    }
  }
}

/// Returns images [first, first + images) of an activation as the rows of a matrix, with the
/// columns of `group`.
template <class View>
View rows_of(View x, std::int64_t first, std::int64_t images, std::int64_t group,
             std::int64_t groups) {
  const View part = x.slice(0, first, images);
  const View rows = part.reshape(Shape{images * x.dim(1) * x.dim(2), x.dim(3)});
  const std::int64_t width = x.dim(3) / groups;
  return rows.slice(1, group * width, width);
}

/// Returns the weights of one group as a matrix [out/groups, patch].
template <class View>
View matrix_of(const ConvShape& s, View weight, std::int64_t group) {
  return weight.reshape(Shape{s.out, s.patch()}).slice(0, group * s.group_out(), s.group_out());
}

void gather_patches(Context& ctx, const ConvShape& s, ConstTensorView x, std::int64_t first,
                    std::int64_t images, std::int64_t group, TensorView patches) {
  const ConstTensorView part = x.slice(0, first, images);
  const ops::PatchSpec spec = patches_of(s, images);
  if (s.groups == 1) return ops::im2col(ctx, spec, part, patches);
  Scratch scratch(ctx);
  const TensorView own = scratch.take(Shape{images, s.h, s.w, s.group_in()}, x.dtype());
  ops::copy(ctx, part.slice(3, group * s.group_in(), s.group_in()), own);
  ops::im2col(ctx, spec, own, patches);
}

/// Adds the patches' elements to the places in dx of one image that they were read from. dx starts
/// at the first channel of the group.
template <class T>
void scatter_patches(const ConvShape& s, const T* patches, T* dx) {
  const std::int64_t channels = s.group_in();
  const ops::Window& k = s.window;
  for (std::int64_t oh = 0; oh < s.out_h; ++oh) {
    for (std::int64_t ow = 0; ow < s.out_w; ++ow) {
      const T* patch = patches + (oh * s.out_w + ow) * s.patch();
      for (int kh = 0; kh < k.kernel_h; ++kh) {
        const std::int64_t h = oh * k.stride_h - k.pad_h + kh * k.dilation_h;
        if (h < 0 || h >= s.h) continue;
        for (int kw = 0; kw < k.kernel_w; ++kw) {
          const std::int64_t w = ow * k.stride_w - k.pad_w + kw * k.dilation_w;
          if (w < 0 || w >= s.w) continue;
          const T* from = patch + (kh * k.kernel_w + kw) * channels;
          T* to = dx + (h * s.w + w) * s.in;
          for (std::int64_t c = 0; c < channels; ++c) to[c] += from[c];
        }
      }
    }
  }
}

class ReferenceConv final : public ConvBackend {
 public:
  [[nodiscard]] bool takes(const ConvShape& shape) const override {
    return shape.dtype == DType::f64 || shape.dtype == DType::f32;
  }

  void forward(Context& ctx, const ConvShape& s, ConstTensorView x, ConstTensorView weight,
               ConstTensorView bias, TensorView y) override {
    if (is_pointwise(s)) return pointwise_forward(ctx, s, x, weight, bias, y);
    if (!bias.empty()) repeat_row(ctx, bias, y);
    for_panels(ctx, s, x.dtype(),
               [&](std::int64_t first, std::int64_t images, std::int64_t g, TensorView patches) {
                 gather_patches(ctx, s, x, first, images, g, patches);
                 ops::gemm(ctx, Trans::no, Trans::yes, 1.0, patches, matrix_of(s, weight, g),
                           bias.empty() ? 0.0 : 1.0, rows_of(y, first, images, g, s.groups));
               });
  }

  void backward_weights(Context& ctx, const ConvShape& s, ConstTensorView x, ConstTensorView dy,
                        TensorView dweight, TensorView dbias) override {
    if (is_pointwise(s)) return pointwise_backward_weights(ctx, s, x, dy, dweight, dbias);
    for_panels(ctx, s, x.dtype(),
               [&](std::int64_t first, std::int64_t images, std::int64_t g, TensorView patches) {
                 gather_patches(ctx, s, x, first, images, g, patches);
                 ops::gemm(ctx, Trans::yes, Trans::no, 1.0, rows_of(dy, first, images, g, s.groups),
                           patches, first == 0 ? 0.0 : 1.0, matrix_of(s, dweight, g));
               });
    if (!dbias.empty()) sum_pixels(ctx, dy, dbias);
  }

  void backward_data(Context& ctx, const ConvShape& s, ConstTensorView dy, ConstTensorView weight,
                     TensorView dx) override {
    if (is_pointwise(s)) return pointwise_backward_data(ctx, s, dy, weight, dx);
    ops::fill(ctx, dx, 0.0);
    for_panels(ctx, s, dy.dtype(),
               [&](std::int64_t first, std::int64_t images, std::int64_t g, TensorView patches) {
                 ops::gemm(ctx, Trans::no, Trans::no, 1.0, rows_of(dy, first, images, g, s.groups),
                           matrix_of(s, weight, g), 0.0, patches);
                 visit_computing(dx.dtype(), [&]<class T>(Type<T>) {
                   const T* from = patches.data<T>();
                   T* to = dx.slice(0, first, images).template data<T>() + g * s.group_in();
                   const std::int64_t size = s.out_h * s.out_w * s.patch(),
                                      image = s.h * s.w * s.in;
                   each(images, size, [=, &s](std::int64_t i) {
                     scatter_patches(s, from + i * size, to + i * image);
                   });
                 });
               });
  }
};

}  // namespace

std::unique_ptr<ConvBackend> make_reference_conv() { return std::make_unique<ReferenceConv>(); }

}  // namespace dkfac::nn::cpu
