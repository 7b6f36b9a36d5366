#pragma once

#include <cstdint>

#include "dkfac/core/layer_spec.h"

#include "support/fisher.h"

/// Convolutions by index arithmetic: the memory order of every layout, written explicitly.
namespace dkfac::testing::fisher {

/// Extents of a batch of images.
struct Images {
  std::int64_t n = 0, h = 0, w = 0;
};

/// Element of an activation with c channels.
inline std::int64_t activation_index(ops::Layout layout, const Images& s, std::int64_t channels,
                                     std::int64_t n, std::int64_t c, std::int64_t y,
                                     std::int64_t x) {
  return layout == ops::Layout::nhwc ? ((n * s.h + y) * s.w + x) * channels + c
                                     : ((n * channels + c) * s.h + y) * s.w + x;
}

/// Element of one output's weights, hence a column of A; c counts within the group.
inline std::int64_t weight_index(const Conv2dSpec& s, ops::Layout layout, std::int64_t c,
                                 std::int64_t kh, std::int64_t kw) {
  return layout == ops::Layout::nhwc ? (kh * s.window.kernel_w + kw) * (s.in / s.groups) + c
                                     : (c * s.window.kernel_h + kh) * s.window.kernel_w + kw;
}

inline Images output_of(const Conv2dSpec& s, const Images& in) {
  if (s.same) return in;
  return {in.n,
          (in.h + 2 * s.window.pad_h - s.window.dilation_h * (s.window.kernel_h - 1) - 1) /
                  s.window.stride_h +
              1,
          (in.w + 2 * s.window.pad_w - s.window.dilation_w * (s.window.kernel_w - 1) - 1) /
                  s.window.stride_w +
              1};
}

/// Zeros before the image in one direction; of those of `same` half, rounded down.
inline std::int64_t zeros_before(const Conv2dSpec& s, int kernel, int dilation, int pad) {
  return s.same ? dilation * (kernel - 1) / 2 : pad;
}

/// All patches of one group, one per row in the order (n, y, x), with a last 1 for a bias.
/// `columns` is the order of their columns; the right one is the layout of the spec.
inline Matrix naive_patches(const Conv2dSpec& s, const Images& in, const Vector& x,
                            ops::Layout columns, std::int64_t group = 0) {
  const Images out = output_of(s, in);
  const std::int64_t top = zeros_before(s, s.window.kernel_h, s.window.dilation_h, s.window.pad_h);
  const std::int64_t left = zeros_before(s, s.window.kernel_w, s.window.dilation_w, s.window.pad_w);
  const std::int64_t channels = s.in / s.groups;
  Matrix m(out.n * out.h * out.w,
           channels * s.window.kernel_h * s.window.kernel_w + (s.bias ? 1 : 0));
  for (std::int64_t row = 0; row < m.rows; ++row) {
    const std::int64_t n = row / (out.h * out.w), y = row / out.w % out.h, z = row % out.w;
    for (std::int64_t c = 0; c < channels; ++c) {
      for (std::int64_t kh = 0; kh < s.window.kernel_h; ++kh) {
        for (std::int64_t kw = 0; kw < s.window.kernel_w; ++kw) {
          const std::int64_t iy = y * s.window.stride_h + kh * s.window.dilation_h - top;
          const std::int64_t ix = z * s.window.stride_w + kw * s.window.dilation_w - left;
          if (iy < 0 || iy >= in.h || ix < 0 || ix >= in.w) continue;
          m(row, weight_index(s, columns, c, kh, kw)) = x[static_cast<std::size_t>(
              activation_index(s.layout, in, s.in, n, group * channels + c, iy, ix))];
        }
      }
    }
    if (s.bias) m(row, m.cols - 1) = 1;
  }
  return m;
}

/// Output gradients of one group, one position per row in the order (n, y, x).
inline Matrix naive_positions(const Conv2dSpec& s, const Images& out, const Vector& dy,
                              std::int64_t group = 0) {
  const std::int64_t channels = s.out / s.groups;
  Matrix m(out.n * out.h * out.w, channels);
  for (std::int64_t row = 0; row < m.rows; ++row) {
    const std::int64_t n = row / (out.h * out.w), y = row / out.w % out.h, z = row % out.w;
    for (std::int64_t c = 0; c < channels; ++c) {
      m(row, c) = dy[static_cast<std::size_t>(
          activation_index(s.layout, out, s.out, n, group * channels + c, y, z))];
    }
  }
  return m;
}

/// Shape of an activation in the layout of the spec.
inline Shape activation_shape(ops::Layout layout, const Images& s, std::int64_t channels) {
  return layout == ops::Layout::nhwc ? Shape{s.n, s.h, s.w, channels}
                                     : Shape{s.n, channels, s.h, s.w};
}

}  // namespace dkfac::testing::fisher
