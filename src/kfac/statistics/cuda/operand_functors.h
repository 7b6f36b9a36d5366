#pragma once

#include <cstdint>
#include <limits>

#include "core/shared/cuda/convert.h"
#include "core/shared/cuda/device_code.h"
#include "core/shared/cuda/reduce_ops.h"
#include "core/shared/element.h"
#include "core/shared/pack.h"

/// Rounding of operands and their ranges, for reduce_rows: elements are written during the
/// reduction.
namespace dkfac::kfac::cuda {

/// Range of some elements: the largest magnitude before scaling, and the number of non-zero ones
/// that were rounded to zero.
struct OperandRange {
  float largest;
  double lost;
};

struct JoinRanges {
  DKFAC_HD OperandRange identity() const { return {0, 0}; }
  DKFAC_HD OperandRange operator()(OperandRange a, OperandRange b) const {
    return {dkfac::cuda::Max<float>{}(a.largest, b.largest), a.lost + b.lost};
  }
};

DKFAC_HD inline float magnitude(float x) { return x < 0 ? -x : x; }

/// Returns D(scale * f32(x)), saturating; adds x to `range`.
template <class S, class D>
struct RoundElement {
  float scale;

  DKFAC_HD D operator()(S element, OperandRange& range) const {
    const float x = dkfac::cuda::widened<float>(element);
    const float y = detail::quantize<D>(scale * x);
    const double lost = x != 0 && y == 0 ? 1 : 0;
    range = JoinRanges{}(range, {magnitude(x), lost});
    return dkfac::cuda::rounded<D>(y);
  }
};

/// Adds the element to `range` and returns it unchanged.
template <class S>
struct KeepElement {
  DKFAC_HD S operator()(S element, OperandRange& range) const {
    range = JoinRanges{}(range, {magnitude(dkfac::cuda::widened<float>(element)), 0});
    return element;
  }
};

/// Elements that a thread reads or writes at once.
inline constexpr int kPackSize = 4;
template <class T>
struct alignas(sizeof(T) * kPackSize < 16 ? sizeof(T) * kPackSize : 16) Pack {
  T v[kPackSize];
};

/// to[i] = f(from[i]) for contiguous elements; one call handles a pack, for which both arrays are
/// aligned. `to` may be null.
template <class S, class D, class F>
struct EachPack {
  const S* from;
  D* to;
  std::int64_t numel;
  F f;

  DKFAC_HD OperandRange operator()(std::int64_t, std::int64_t k) const {
    OperandRange range = JoinRanges{}.identity();
    const std::int64_t first = k * kPackSize;
    if (first + kPackSize <= numel) {
      const Pack<S> in = *dkfac::cuda::as_packs<const Pack<S>>(from + first);
      Pack<D> out;
      for (int i = 0; i < kPackSize; ++i) out.v[i] = f(in.v[i], range);
      if (to != nullptr) *dkfac::cuda::as_packs<Pack<D>>(to + first) = out;
      return range;
    }
    for (std::int64_t i = first; i < numel; ++i) {
      const D out = f(from[i], range);
      if (to != nullptr) to[i] = out;
    }
    return range;
  }
};

/// to[i] = f(from[i]) for from[rows,cols] with a row stride, one element per call.
template <class S, class D, class F>
struct EachStrided {
  const S* from;
  D* to;
  std::int64_t cols, stride;
  F f;

  DKFAC_HD OperandRange operator()(std::int64_t, std::int64_t k) const {
    OperandRange range = JoinRanges{}.identity();
    const D out = f(from[k / cols * stride + k % cols], range);
    if (to != nullptr) to[k] = out;
    return range;
  }
};

/// Outputs of the range of all elements; either may be null.
struct StoreRange {
  float* max_abs;
  float* underflow;  ///< Incremented.

  DKFAC_HD void operator()(std::int64_t, OperandRange range) const {
    const bool nan = range.largest != range.largest;
    if (max_abs != nullptr) *max_abs = nan ? std::numeric_limits<float>::infinity() : range.largest;
    if (underflow != nullptr) *underflow += static_cast<float>(range.lost);
  }
};

}  // namespace dkfac::kfac::cuda
