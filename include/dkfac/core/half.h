#pragma once

#include <bit>
#include <cstdint>

namespace dkfac {

/// IEEE binary16 as bits. Conversions round to nearest, ties to even; overflow gives infinity.
struct f16 {
  std::uint16_t bits = 0;
  bool operator==(const f16&) const = default;
};

/// The upper half of an IEEE binary32, as bits.
struct bf16 {
  std::uint16_t bits = 0;
  bool operator==(const bf16&) const = default;
};

[[nodiscard]] float to_float(f16 x) noexcept;   ///< Exact. NaN stays NaN.
[[nodiscard]] float to_float(bf16 x) noexcept;  ///< Exact. NaN stays NaN.
[[nodiscard]] f16 to_f16(float x) noexcept;
[[nodiscard]] bf16 to_bf16(float x) noexcept;
/// Straight from double: going through float would round twice.
[[nodiscard]] f16 to_f16(double x) noexcept;
[[nodiscard]] bf16 to_bf16(double x) noexcept;

/// Largest finite f16.
inline constexpr float kMaxF16 = 65504.0F;

}  // namespace dkfac
