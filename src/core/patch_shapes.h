#pragma once

#include "dkfac/core/ops.h"

/// Special forms of convolutions that save work on every backend.
namespace dkfac::detail {

/// Whether the methods without patches (offsets, correlation) apply.
[[nodiscard]] inline bool is_three_by_three(const ops::PatchSpec& s) {
  return s.window == ops::Window::square(3, 1, 1);
}

/// Whether it is a 1x1 kernel that visits every pixel once: the patches are the channels in place.
[[nodiscard]] inline bool is_plain(const ops::PatchSpec& s) {
  return s.layout == ops::Layout::nhwc && s.window.taps() == 1 && s.window.stride_h == 1 &&
         s.window.stride_w == 1 && s.padded_h() == s.h && s.padded_w() == s.w;
}

/// Whether the kernel is as large as the image: every image is one patch in place.
[[nodiscard]] inline bool is_whole(const ops::PatchSpec& s) {
  return s.window.kernel_h == s.h && s.window.kernel_w == s.w && s.padded_h() == s.h &&
         s.padded_w() == s.w && s.c == s.x_channels();
}

/// Returns a matrix whose rows are the channels of each pixel.
[[nodiscard]] inline ConstTensorView plain_rows(const ops::PatchSpec& s, ConstTensorView x) {
  const ConstTensorView first = x.slice(3, s.first_c, s.c);
  return {first.raw(), x.dtype(), {s.rows(), s.c}, {s.x_channels(), 1}, x.device()};
}

}  // namespace dkfac::detail
