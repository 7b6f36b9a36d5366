#pragma once

#include <bit>
#include <cstdint>

#include "dkfac/core/export.h"

namespace dkfac {

/// Bits of an IEEE binary16. Conversions round to nearest, ties to even; overflow gives infinity.
struct DKFAC_API f16 {
  std::uint16_t bits = 0;
  bool operator==(const f16&) const = default;
};

/// Bits of a bfloat16: the upper half of an IEEE binary32.
struct DKFAC_API bf16 {
  std::uint16_t bits = 0;
  bool operator==(const bf16&) const = default;
};

[[nodiscard]] DKFAC_API float to_float(f16 x) noexcept;   ///< Exact. NaN stays NaN.
[[nodiscard]] DKFAC_API float to_float(bf16 x) noexcept;  ///< Exact. NaN stays NaN.
[[nodiscard]] DKFAC_API f16 to_f16(float x) noexcept;
[[nodiscard]] DKFAC_API bf16 to_bf16(float x) noexcept;
/// Converts directly from double, rounding once; going through float would round twice.
[[nodiscard]] DKFAC_API f16 to_f16(double x) noexcept;
[[nodiscard]] DKFAC_API bf16 to_bf16(double x) noexcept;

/// Largest finite f16.
inline constexpr float kMaxF16 = 65504.0F;

}  // namespace dkfac
