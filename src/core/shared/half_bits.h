#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "dkfac/core/half.h"

#include "core/shared/cuda/device_code.h"

/// Conversions of the 16-bit formats in branch-free integer arithmetic, inline so that loops
/// vectorise.
namespace dkfac::detail {

template <class T>
struct FloatFormat;
template <>
struct FloatFormat<float> {
  using Bits = std::uint32_t;
  static constexpr int kMantissa = 23, kBias = 127;
};
template <>
struct FloatFormat<double> {
  using Bits = std::uint64_t;
  static constexpr int kMantissa = 52, kBias = 1023;
};
template <>
struct FloatFormat<f16> {
  static constexpr int kMantissa = 10, kBias = 15;
};
template <>
struct FloatFormat<bf16> {
  static constexpr int kMantissa = 7, kBias = 127;
};

/// Rounds to nearest, ties to even. A NaN keeps its sign and leading payload and becomes quiet.
template <class Half, class Wide>
[[nodiscard]] DKFAC_HD inline Half narrow(Wide x) noexcept {
  using From = FloatFormat<Wide>;
  using To = FloatFormat<Half>;
  using Bits = typename From::Bits;
  constexpr int kShift = From::kMantissa - To::kMantissa;
  constexpr Bits kOne = 1;
  constexpr Bits kSign = kOne << (std::numeric_limits<Bits>::digits - 1);
  constexpr Bits kInfinity = std::bit_cast<Bits>(std::numeric_limits<Wide>::infinity());
  constexpr Bits kBiasDifference = static_cast<Bits>(From::kBias - To::kBias) << From::kMantissa;
  // First magnitude past the exponent range: 2^(bias + 1). First normal one: 2^(1 - bias).
  constexpr Bits kOverflow = static_cast<Bits>(From::kBias + To::kBias + 1) << From::kMantissa;
  constexpr Bits kNormal = static_cast<Bits>(From::kBias - To::kBias + 1) << From::kMantissa;
  constexpr Bits kHalfInfinity = static_cast<Bits>(2 * To::kBias + 1) << To::kMantissa;

  const Bits bits = std::bit_cast<Bits>(x);
  const Bits magnitude = bits & ~kSign;
  const Bits rebased = magnitude - kBiasDifference;
  Bits half = (rebased + ((kOne << (kShift - 1)) - 1) + ((rebased >> kShift) & 1)) >> kShift;
  if constexpr (kBiasDifference != 0) {
    // The last bit of kAlign has the weight of Half's smallest subnormal: the addition rounds.
    constexpr Bits kAlign = static_cast<Bits>(From::kBias - To::kBias + 1 + kShift)
                            << From::kMantissa;
    const Wide aligned = std::bit_cast<Wide>(magnitude) + std::bit_cast<Wide>(kAlign);
    half = magnitude < kNormal ? std::bit_cast<Bits>(aligned) - kAlign : half;
  }
  half = magnitude >= kOverflow ? kHalfInfinity : half;
  const Bits quiet = kHalfInfinity | (kOne << (To::kMantissa - 1)) |
                     ((magnitude >> kShift) & ((kOne << To::kMantissa) - 1));
  half = magnitude > kInfinity ? quiet : half;
  constexpr int kSignShift = std::numeric_limits<Bits>::digits - 16;
  return {static_cast<std::uint16_t>(half | ((bits & kSign) >> kSignShift))};
}

/// Rounds to Half and widens again, but magnitudes beyond Half's largest finite value, infinity
/// included, saturate to it. NaN stays NaN.
template <class Half, class Wide>
[[nodiscard]] DKFAC_HD inline Wide quantize(Wide x) noexcept {
  using From = FloatFormat<Wide>;
  using To = FloatFormat<Half>;
  using Bits = typename From::Bits;
  constexpr int kShift = From::kMantissa - To::kMantissa;
  constexpr Bits kOne = 1;
  constexpr Bits kDropped = (kOne << kShift) - 1;
  constexpr Bits kLargestBits =
      (static_cast<Bits>(From::kBias + To::kBias + 1) << From::kMantissa) - (kOne << kShift);
  constexpr Wide kLargest = std::bit_cast<Wide>(kLargestBits);

  const Wide magnitude = std::abs(x);
  const Bits bits = std::bit_cast<Bits>(magnitude);
  const Bits up = bits + ((kOne << (kShift - 1)) - 1) + ((bits >> kShift) & 1);
  Wide rounded = std::bit_cast<Wide>(up & ~kDropped);
  if constexpr (From::kBias != To::kBias) {
    // As in narrow(): the last bit of kAlign has the weight of Half's smallest subnormal.
    constexpr int kAlignExponent = From::kBias - To::kBias + 1 + kShift;
    constexpr Wide kAlign =
        std::bit_cast<Wide>(static_cast<Bits>(kAlignExponent) << From::kMantissa);
    constexpr Bits kNormal = static_cast<Bits>(From::kBias - To::kBias + 1) << From::kMantissa;
    const Wide subnormal = (magnitude + kAlign) - kAlign;
    rounded = bits < kNormal ? subnormal : rounded;
  }
  rounded = rounded > kLargest ? kLargest : rounded;
  return x != x ? x : std::copysign(rounded, x);
}

[[nodiscard]] DKFAC_HD inline float widen(bf16 x) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16);
}

[[nodiscard]] DKFAC_HD inline float widen(f16 x) noexcept {
  const std::uint32_t magnitude = x.bits & 0x7FFFU;
  const std::uint32_t shifted = magnitude << 13;
  constexpr std::uint32_t kBiasDifference = (127U - 15U) << 23;
  // Infinity and NaN move up twice: from exponent 31 to 255.
  const std::uint32_t normal =
      shifted + kBiasDifference + (magnitude >= 0x7C00U ? kBiasDifference : 0U);
  const float subnormal = static_cast<float>(static_cast<std::int32_t>(magnitude)) * 0x1p-24F;
  const std::uint32_t bits = magnitude < 0x0400U ? std::bit_cast<std::uint32_t>(subnormal) : normal;
  return std::bit_cast<float>(bits | (static_cast<std::uint32_t>(x.bits & 0x8000U) << 16));
}

}  // namespace dkfac::detail
