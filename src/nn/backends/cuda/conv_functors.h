#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "core/shared/cuda/convert.h"
#include "core/shared/cuda/index.h"
#include "nn/backends/conv_backend.h"
#include "nn/backends/cuda/pack.h"
#include "nn/backends/dtype.h"

/// Convolutions as products of patches, group by group: the reads and writes around the products.
/// Patches are [groups, pixels of the outputs, patch], a patch ordered (kh, kw, c) as the weights
/// of one output are.
namespace dkfac::nn::cuda {

/// Maps an output and an element of the kernel to the pixel of an image.
struct ConvPlaces {
  explicit ConvPlaces(const ConvShape& s)
      : n(s.n),
        h(s.h),
        w(s.w),
        in(s.in),
        out_h(s.out_h),
        out_w(s.out_w),
        kernel_h(s.window.kernel_h),
        kernel_w(s.window.kernel_w),
        stride_h(s.window.stride_h),
        stride_w(s.window.stride_w),
        pad_h(s.window.pad_h),
        pad_w(s.window.pad_w),
        dilation_h(s.window.dilation_h),
        dilation_w(s.window.dilation_w),
        group_in(s.group_in()) {}

  [[nodiscard]] DKFAC_HD std::int64_t patch() const { return kernel_h * kernel_w * group_in; }
  [[nodiscard]] DKFAC_HD std::int64_t pixels() const { return n * out_h * out_w; }

  std::int64_t n, h, w, in, out_h, out_w;
  std::int64_t kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
  std::int64_t group_in;
};

/// Index i writes word i of the patches; channels of the places are counted in words.
template <class W>
struct GatherPatches {
  ConvPlaces s;
  const W* x;
  W* patches;

  DKFAC_HD void operator()(std::int64_t i) const {
    using dkfac::cuda::quotient;
    const std::int64_t width = s.patch(), row = quotient(i, width), at = i - row * width;
    const std::int64_t group = quotient(row, s.pixels()), pixel = row - group * s.pixels();
    const std::int64_t tap = quotient(at, s.group_in), c = at - tap * s.group_in;
    const std::int64_t kh = quotient(tap, s.kernel_w), kw = tap - kh * s.kernel_w;
    const std::int64_t line = quotient(pixel, s.out_w), n = quotient(line, s.out_h);
    const std::int64_t h = (line - n * s.out_h) * s.stride_h - s.pad_h + kh * s.dilation_h;
    const std::int64_t w = (pixel - line * s.out_w) * s.stride_w - s.pad_w + kw * s.dilation_w;
    const bool inside = h >= 0 && h < s.h && w >= 0 && w < s.w;
    patches[i] = inside ? x[((n * s.h + h) * s.w + w) * s.in + group * s.group_in + c] : W{};
  }
};

/// Index i writes pack i of dx, of kWidth elements: the sums of their elements in `patches` over
/// the windows that read them, in the order of the kernel. kWidth divides the channels of a group,
/// and both pointers are multiples of a pack.
template <class T, std::size_t kWidth>
struct SumOfPatches {
  using C = Computed<T>;
  using Sums = Pack<C, kWidth>;
  ConvPlaces s;
  const C* patches;
  T* dx;

  DKFAC_HD void operator()(std::int64_t i) const {
    using dkfac::cuda::quotient;
    const std::int64_t begin = i * static_cast<std::int64_t>(kWidth);
    const std::int64_t pixel = quotient(begin, s.in), channel = begin - pixel * s.in;
    const std::int64_t group = quotient(channel, s.group_in), c = channel - group * s.group_in;
    const std::int64_t line = quotient(pixel, s.w), n = quotient(line, s.h);
    const std::int64_t from_h = line - n * s.h + s.pad_h, from_w = pixel - line * s.w + s.pad_w;
    const C* images = patches + (group * s.pixels() + n * s.out_h * s.out_w) * s.patch() + c;
    Sums sums{};
    for (std::int64_t kh = 0; kh < s.kernel_h; ++kh) {
      const std::int64_t h = output(from_h - kh * s.dilation_h, s.stride_h, s.out_h);
      if (h < 0) continue;
      for (std::int64_t kw = 0; kw < s.kernel_w; ++kw) {
        const std::int64_t w = output(from_w - kw * s.dilation_w, s.stride_w, s.out_w);
        if (w < 0) continue;
        const Sums more = *as_packs<const Sums>(images + (h * s.out_w + w) * s.patch() +
                                                (kh * s.kernel_w + kw) * s.group_in);
        for (std::size_t k = 0; k < kWidth; ++k) sums.at[k] += more.at[k];
      }
    }
    Pack<T, kWidth> stored;
    for (std::size_t k = 0; k < kWidth; ++k) stored.at[k] = rounded<T>(sums.at[k]);
    as_packs<Pack<T, kWidth>>(dx)[i] = stored;
  }
  /// Returns the output whose window begins here; -1 when there is none.
  [[nodiscard]] DKFAC_HD static std::int64_t output(std::int64_t begin, std::int64_t stride,
                                                    std::int64_t count) {
    if (begin < 0) return -1;
    const std::int64_t at = dkfac::cuda::quotient(begin, stride);
    return at * stride == begin && at < count ? at : -1;
  }
};

/// Index i writes pack i of y[pixels, groups * width], of kWidth elements, from the sums [groups,
/// pixels, width], and a bias where that is not null. kWidth divides `width`, and y and sums are
/// multiples of a pack.
template <class T, std::size_t kWidth>
struct StoreOutputs {
  using C = Computed<T>;
  const C* sums;
  const C* bias;
  T* y;
  std::int64_t pixels, groups, width;

  DKFAC_HD void operator()(std::int64_t i) const {
    using dkfac::cuda::quotient;
    const std::int64_t begin = i * static_cast<std::int64_t>(kWidth), out = groups * width;
    const std::int64_t pixel = quotient(begin, out), at = begin - pixel * out;
    const std::int64_t group = quotient(at, width);
    const auto sum = *as_packs<const Pack<C, kWidth>>(sums + (group * pixels + pixel) * width + at -
                                                      group * width);
    Pack<T, kWidth> stored;
    for (std::size_t k = 0; k < kWidth; ++k)
      stored.at[k] = rounded<T>(
          bias == nullptr ? sum.at[k] : sum.at[k] + bias[at + static_cast<std::int64_t>(k)]);
    as_packs<Pack<T, kWidth>>(y)[i] = stored;
  }
};

/// Returns the number of images processed at once: equal parts except for the last, as many as fit
/// but at least one.
[[nodiscard]] inline std::int64_t images_at_once(std::int64_t images, std::int64_t bytes_of_one,
                                                 std::int64_t most_bytes) {
  const std::int64_t most =
      std::clamp<std::int64_t>(most_bytes / std::max<std::int64_t>(bytes_of_one, 1), 1, images);
  const std::int64_t parts = (images + most - 1) / most;
  return (images + parts - 1) / parts;
}

}  // namespace dkfac::nn::cuda
