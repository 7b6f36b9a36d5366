#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "dkfac/core/types.h"

#include "core/shared/half_bits.h"
#include "nn/backends/dtype.h"

/// Activations may be stored in 16 bits; arithmetic is then in f32, and in their own type
/// otherwise.
namespace dkfac::nn::cpu {

using nn::Computed;

[[nodiscard]] inline double load(double x) { return x; }
[[nodiscard]] inline float load(float x) { return x; }
[[nodiscard]] inline float load(bf16 x) { return dkfac::detail::widen(x); }
[[nodiscard]] inline float load(f16 x) { return dkfac::detail::widen(x); }

/// Rounds to nearest, ties to even.
template <class T>
[[nodiscard]] inline T store(Computed<T> x) {
  if constexpr (std::is_floating_point_v<T>) {
    return x;
  } else if constexpr (std::is_same_v<T, bf16>) {
    // Part of narrow() for a format with f32's exponent range: a carry reaches infinity by itself.
    const auto bits = std::bit_cast<std::uint32_t>(x);
    const std::uint32_t rounded = (bits + 0x7FFFU + ((bits >> 16U) & 1U)) >> 16U;
    const std::uint32_t quiet = (bits >> 16U) | 0x40U;
    return {static_cast<std::uint16_t>(x != x ? quiet : rounded)};
  } else {
    return dkfac::detail::narrow<T>(x);
  }
}

}  // namespace dkfac::nn::cpu
