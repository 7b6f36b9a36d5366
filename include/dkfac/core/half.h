#pragma once

#include <bit>
#include <cstdint>

#include "dkfac/core/export.h"

namespace dkfac {

/// IEEE binary16 as bits. Conversions round to nearest, ties to even; overflow gives infinity.
struct DKFAC_API f16 {
  std::uint16_t bits = 0;
  bool operator==(const f16&) const = default;
};

/// The upper half of an IEEE binary32, as bits.
struct DKFAC_API bf16 {
  std::uint16_t bits = 0;
  bool operator==(const bf16&) const = default;
};

[[nodiscard]] DKFAC_API float to_float(f16 x) noexcept;   ///< Exact. NaN stays NaN.
[[nodiscard]] DKFAC_API float to_float(bf16 x) noexcept;  ///< Exact. NaN stays NaN.
[[nodiscard]] DKFAC_API f16 to_f16(float x) noexcept;
[[nodiscard]] DKFAC_API bf16 to_bf16(float x) noexcept;
/// Straight from double: going through float would round twice.
[[nodiscard]] DKFAC_API f16 to_f16(double x) noexcept;
[[nodiscard]] DKFAC_API bf16 to_bf16(double x) noexcept;

/// Largest finite f16.
inline constexpr float kMaxF16 = 65504.0F;

}  // namespace dkfac
