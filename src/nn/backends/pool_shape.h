#pragma once

#include <cstdint>

namespace dkfac::nn {

/// Shapes of pooling over windows: x[n,h,w,c], y[n,out_h,out_w,c].
struct PoolShape {
  std::int64_t n = 0, h = 0, w = 0, c = 0;
  std::int64_t out_h = 0, out_w = 0;
  std::int64_t kernel = 1, stride = 1, pad = 0;
};

/// Shapes of pooling over positions: x[n,positions,c] -> y[n,c].
struct GlobalShape {
  std::int64_t n = 0, positions = 0, c = 0;
};

/// Shapes of a PadShortcut: large[n,h,w,c] -> small[n,ceil(h/stride),ceil(w/stride),small_c]. It
/// keeps every stride-th pixel, with `before` zero channels before its channels and zeros after.
struct PadShape {
  std::int64_t n = 0, h = 0, w = 0, c = 0;
  std::int64_t small_h = 0, small_w = 0, small_c = 0;
  std::int64_t stride = 1, before = 0;
};

}  // namespace dkfac::nn
