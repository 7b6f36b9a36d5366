#pragma once

#include <cstddef>
#include <cstdint>

#include "dkfac/core/ops.h"

#include "core/shared/cuda/convert.h"
#include "core/shared/cuda/device_code.h"
#include "core/shared/cuda/index.h"
#include "core/shared/element.h"
#include "core/shared/pack.h"

/// Functors that read images through the windows of a convolution.
namespace dkfac::cuda {

/// Strides of images in elements (or words), from the first channel that is read.
struct ImageStrides {
  std::int64_t image, row, col, channel;
};

[[nodiscard]] inline ImageStrides strides_of(const ops::PatchSpec& s) {
  const std::int64_t c = s.x_channels();
  if (s.layout == ops::Layout::nhwc) return {s.h * s.w * c, s.w * c, c, 1};
  return {s.h * s.w * c, s.w, 1, s.h * s.w};
}

/// Offset of the first element of x that is read.
[[nodiscard]] inline std::int64_t first_element(const ops::PatchSpec& s) {
  return s.first_c * (s.layout == ops::Layout::nhwc ? 1 : s.h * s.w);
}

/// Returns the spec with words of `channels` channels each in place of channels.
[[nodiscard]] inline ops::PatchSpec in_words(ops::PatchSpec s, std::int64_t channels) {
  s.x_c = s.x_channels() / channels;
  s.c /= channels;
  s.first_c /= channels;
  return s;
}

/// Column of a patch: kernel position and channel.
struct PatchColumn {
  std::int64_t y, x, channel;
};

/// Windows of a convolution over channels in equal groups. Columns of a patch are ordered
/// (group, kh, kw, c) in nhwc and (group, c, kh, kw) in nchw; c counts within the group.
struct Windows {
  ImageStrides at;
  std::int64_t h, w, out_h, out_w;
  std::int64_t stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
  std::int64_t kernel_h, kernel_w, group_channels, group_width;
  bool channels_last;

  explicit Windows(const ops::PatchSpec& s, std::int64_t groups = 1)
      : at(strides_of(s)),
        h(s.h),
        w(s.w),
        out_h(s.out_h()),
        out_w(s.out_w()),
        stride_h(s.window.stride_h),
        stride_w(s.window.stride_w),
        pad_h(s.window.pad_h),
        pad_w(s.window.pad_w),
        dilation_h(s.window.dilation_h),
        dilation_w(s.window.dilation_w),
        kernel_h(s.window.kernel_h),
        kernel_w(s.window.kernel_w),
        group_channels(s.c / groups),
        group_width(s.width() / groups),
        channels_last(s.layout == ops::Layout::nhwc) {}

  [[nodiscard]] DKFAC_HD PatchColumn column(std::int64_t i) const {
    const std::int64_t group = quotient(i, group_width), first = group * group_channels;
    i -= group * group_width;
    // i = (y*kernel_w + x)*channels + c or (c*kernel_h + y)*kernel_w + x.
    const std::int64_t inner = channels_last ? group_channels : kernel_w;
    const std::int64_t middle = channels_last ? kernel_w : kernel_h;
    const std::int64_t line = quotient(i, inner), outer = quotient(line, middle);
    const std::int64_t first_index = i - line * inner, second = line - outer * middle;
    if (channels_last) return {outer, second, first + first_index};
    return {second, first_index, first + outer};
  }

  /// Returns the index of the image element in column c of the patch at output (n, y, x); -1 for
  /// zero padding.
  [[nodiscard]] DKFAC_HD std::int64_t element(std::int64_t n, std::int64_t y, std::int64_t x,
                                              const PatchColumn& c) const {
    const std::int64_t row = y * stride_h - pad_h + c.y * dilation_h;
    const std::int64_t col = x * stride_w - pad_w + c.x * dilation_w;
    if (row < 0 || row >= h || col < 0 || col >= w) return -1;
    return n * at.image + row * at.row + col * at.col + c.channel * at.channel;
  }
};

/// Copies element i of the patches [first, ...) of x, `width` per patch, to row i / width of
/// patches with a row stride. W: an element or a Word of them.
template <class W>
struct FillPatches {
  const W* x;  ///< First element that is read (first_element()).
  W* patches;
  std::int64_t first, width, row;
  Windows windows;

  DKFAC_HD void operator()(std::int64_t i) const {
    const std::int64_t r = quotient(i, width), c = i - r * width;
    const std::int64_t line = quotient(first + r, windows.out_w);
    const std::int64_t n = quotient(line, windows.out_h);
    const std::int64_t from = windows.element(n, line - n * windows.out_h,
                                              first + r - line * windows.out_w, windows.column(c));
    patches[r * row + c] = from < 0 ? W{} : x[from];
  }
};

/// Returns term k of sum i = n*width + column: that column of the patch at output position k of
/// image n.
template <class S, class T>
struct PatchTerm {
  const S* x;
  std::int64_t width;
  Windows windows;
  DKFAC_HD T operator()(std::int64_t i, std::int64_t k) const {
    const std::int64_t n = quotient(i, width), y = quotient(k, windows.out_w);
    const std::int64_t from =
        windows.element(n, y, k - y * windows.out_w, windows.column(i - n * width));
    return from < 0 ? T{} : widened<T>(x[from]);
  }
};

/// Stores sum i = n*width + column to sums(n, column).
template <class T>
struct StorePatchSum {
  T* sums;
  std::int64_t width, row;
  T scale;
  DKFAC_HD void operator()(std::int64_t i, T value) const {
    const std::int64_t n = quotient(i, width);
    sums[n * row + i - n * width] = scale * value;
  }
};

}  // namespace dkfac::cuda
