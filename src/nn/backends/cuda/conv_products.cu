#include <algorithm>
#include <cstdint>

#include "dkfac/core/ops.h"

#include "core/shared/cuda/batched.h"
#include "core/shared/cuda/launch.cuh"
#include "core/shared/cuda/linalg16.h"
#include "nn/backends/backend_elementwise.h"
#include "nn/backends/conv_backend.h"
#include "nn/backends/cuda/channel_packs.h"
#include "nn/backends/cuda/conv_functors.h"

namespace dkfac::nn::cuda {
namespace {

using dkfac::cuda::for_each;
using ops::Trans;

bool has_16_bits(const ConvShape& s) { return s.dtype == DType::f16 || s.dtype == DType::bf16; }

/// Rewrites a dense convolution as one over images of one pixel, so that it can be divided
/// anywhere.
ConvShape cut_into_pixels(ConvShape s) {
  if (!s.is_dense()) return s;
  s.n *= s.h * s.w;
  s.h = s.w = s.out_h = s.out_w = 1;
  return s;
}

/// Returns images [first, first + count) of activations.
template <class View>
View images_of(View all, std::int64_t images, std::int64_t first, std::int64_t count) {
  return all.reshape(Shape{images, all.numel() / images}).slice(0, first, count).flat();
}

/// Views activations of `pixels` pixels as a batch [groups, pixels, channels of a group].
template <class View>
View groups_of(View activations, std::int64_t groups, std::int64_t pixels) {
  const std::int64_t channels = activations.numel() / pixels, width = channels / groups;
  return {activations.raw(), activations.dtype(), Shape{groups, pixels, width},
          Strides{width, channels, 1}, activations.device()};
}

/// Views weights as a batch [groups, out / groups, patch].
template <class View>
View weights_of(const ConvShape& s, View weight) {
  return weight.reshape(Shape{s.groups, s.group_out(), s.patch()});
}

void multiply(Context& ctx, Trans trans_a, Trans trans_b, ConstTensorView a, ConstTensorView b,
              double beta, TensorView c) {
  if (size_of(a.dtype()) == 2) {
    dkfac::cuda::gemm16_batched(ctx, trans_a, trans_b, 1, a, b, beta, c);
  } else {
    dkfac::cuda::gemm_batched(ctx, trans_a, trans_b, 1, a, b, beta, c);
  }
}

/// Returns x as patches [groups, pixels, patch]; s has the images of x.
ConstTensorView patches_of(Context& ctx, Scratch& scratch, const ConvShape& s, ConstTensorView x) {
  const std::int64_t pixels = s.n * s.out_h * s.out_w;
  if (s.is_dense()) return groups_of(x, s.groups, pixels);
  const TensorView patches = scratch.take(Shape{s.groups, pixels, s.patch()}, x.dtype());
  const std::uintptr_t addresses = addresses_of(x.raw(), patches.raw());
  visit_words(size_of(x.dtype()), addresses, s.group_in(), [&]<class W>(W, std::int64_t elements) {
    ConvPlaces places(s);
    places.in /= elements;
    places.group_in /= elements;
    for_each(ctx.stream(), patches.numel() / elements,
             GatherPatches<W>{places, as_packs<const W>(x.raw()), as_packs<W>(patches.raw())});
  });
  return patches;
}

/// Number of elements of all patches of one image.
std::int64_t patch_elements(const ConvShape& s) { return s.out_h * s.out_w * s.patch() * s.groups; }

/// Convolution by matrix products. A product is written in place when it has the type and the order
/// of the result, and to scratch memory otherwise. Parts, and with them sums, depend only on
/// shapes.
class ProductConv final : public ConvBackend {
 public:
  explicit ProductConv(std::int64_t scratch_bytes) : scratch_bytes_(scratch_bytes) {}

  [[nodiscard]] bool takes(const ConvShape& shape) const override {
    return shape.dtype != DType::i32;
  }

  void forward(Context& ctx, const ConvShape& shape, ConstTensorView x, ConstTensorView weight,
               ConstTensorView bias, TensorView y) override {
    const ConvShape s = cut_into_pixels(shape);
    Scratch scratch(ctx);
    const ConstTensorView w = weights_of(s, rounded(ctx, scratch, s, weight));
    const bool in_place = !has_16_bits(s) && s.groups == 1;
    if (in_place && !bias.empty()) repeat_row(ctx, bias, y);
    const std::int64_t of_sums =
        in_place ? 0 : s.out_h * s.out_w * s.out * size_in(compute_dtype(s.dtype));
    const std::int64_t of_patches = s.is_dense() ? 0 : patch_elements(s) * size_in(s.dtype);
    in_parts(s, of_sums + of_patches, [&](const ConvShape& part, std::int64_t first) {
      Scratch own(ctx);
      const std::int64_t pixels = part.n * part.out_h * part.out_w;
      const ConstTensorView patches = patches_of(ctx, own, part, images_of(x, s.n, first, part.n));
      const TensorView to = images_of(y, s.n, first, part.n);
      if (in_place) {
        return multiply(ctx, Trans::no, Trans::yes, patches, w, bias.empty() ? 0 : 1,
                        groups_of(to, 1, pixels));
      }
      const TensorView sums =
          own.take(Shape{s.groups, pixels, s.group_out()}, compute_dtype(s.dtype));
      multiply(ctx, Trans::no, Trans::yes, patches, w, 0, sums);
      visit_floating(s.dtype, [&]<class T>(Type<T>) {
        using C = Computed<T>;
        with_width<T>(s.group_out(), are_aligned(to.data<T>()), [&](auto width) {
          for_each(ctx.stream(), to.numel() / static_cast<std::int64_t>(width()),
                   StoreOutputs<T, width()>{sums.data<C>(), bias.empty() ? nullptr : bias.data<C>(),
                                            to.data<T>(), pixels, s.groups, s.group_out()});
        });
      });
    });
  }

  void backward_weights(Context& ctx, const ConvShape& shape, ConstTensorView x, ConstTensorView dy,
                        TensorView dweight, TensorView dbias) override {
    const ConvShape s = cut_into_pixels(shape);
    const std::int64_t of_patches = s.is_dense() ? 0 : patch_elements(s) * size_in(s.dtype);
    in_parts(s, of_patches, [&](const ConvShape& part, std::int64_t first) {
      Scratch own(ctx);
      const std::int64_t pixels = part.n * part.out_h * part.out_w;
      multiply(ctx, Trans::yes, Trans::no,
               groups_of(images_of(dy, s.n, first, part.n), s.groups, pixels),
               patches_of(ctx, own, part, images_of(x, s.n, first, part.n)), first == 0 ? 0 : 1,
               weights_of(s, dweight));
    });
    if (!dbias.empty()) sum_pixels(ctx, dy, dbias);
  }

  void backward_data(Context& ctx, const ConvShape& shape, ConstTensorView dy,
                     ConstTensorView weight, TensorView dx) override {
    const ConvShape s = cut_into_pixels(shape);
    Scratch scratch(ctx);
    const ConstTensorView w = weights_of(s, rounded(ctx, scratch, s, weight));
    const bool in_place = s.is_dense() && !has_16_bits(s) && s.groups == 1;
    const std::int64_t bytes = in_place ? 0 : patch_elements(s) * size_in(compute_dtype(s.dtype));
    in_parts(s, bytes, [&](const ConvShape& part, std::int64_t first) {
      Scratch own(ctx);
      const std::int64_t pixels = part.n * part.out_h * part.out_w;
      const ConstTensorView from = groups_of(images_of(dy, s.n, first, part.n), s.groups, pixels);
      const TensorView to = images_of(dx, s.n, first, part.n);
      if (in_place) {
        return multiply(ctx, Trans::no, Trans::no, from, w, 0, groups_of(to, 1, pixels));
      }
      const TensorView patches =
          own.take(Shape{s.groups, pixels, s.patch()}, compute_dtype(s.dtype));
      multiply(ctx, Trans::no, Trans::no, from, w, 0, patches);
      visit_floating(s.dtype, [&]<class T>(Type<T>) {
        with_width<T>(s.group_in(), are_aligned(to.data<T>()), [&](auto width) {
          for_each(ctx.stream(), to.numel() / static_cast<std::int64_t>(width()),
                   SumOfPatches<T, width()>{ConvPlaces(part), patches.data<Computed<T>>(),
                                            to.data<T>()});
        });
      });
    });
  }

  [[nodiscard]] ReorderCount reorders() const override { return count_; }

 private:
  /// Returns the weights in the type of the activations.
  ConstTensorView rounded(Context& ctx, Scratch& scratch, const ConvShape& s,
                          ConstTensorView weight) {
    if (weight.dtype() == s.dtype) return weight;
    const TensorView narrow = scratch.take(weight.shape(), s.dtype);
    ops::cast(ctx, weight, narrow);
    ++count_.reorders;
    count_.bytes += static_cast<std::int64_t>(narrow.bytes());
    return narrow;
  }
  /// Calls body(shape of these images, first of them) for parts of as many images as fit the
  /// scratch memory at `bytes_of_one` bytes each.
  template <class Body>
  void in_parts(const ConvShape& s, std::int64_t bytes_of_one, Body&& body) const {
    const std::int64_t at_once = images_at_once(s.n, bytes_of_one, scratch_bytes_);
    for (std::int64_t first = 0; first < s.n; first += at_once) {
      ConvShape part = s;
      part.n = std::min(at_once, s.n - first);
      body(part, first);
    }
  }
  static std::int64_t size_in(DType dtype) { return static_cast<std::int64_t>(size_of(dtype)); }

  std::int64_t scratch_bytes_;
  ReorderCount count_;
};

}  // namespace

std::unique_ptr<ConvBackend> make_product_conv(std::int64_t scratch_bytes) {
  return std::make_unique<ProductConv>(scratch_bytes);
}

}  // namespace dkfac::nn::cuda
