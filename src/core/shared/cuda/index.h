#pragma once

#include <cstdint>

#include "core/shared/cuda/device_code.h"

/// Index arithmetic of kernels.
namespace dkfac::cuda {

/// a / b for a >= 0 and b > 0: devices divide 32 bits several times faster than 64.
[[nodiscard]] DKFAC_HD inline std::int64_t quotient(std::int64_t a, std::int64_t b) {
  if (((a | b) >> 32) == 0)
    return static_cast<std::int64_t>(static_cast<std::uint32_t>(a) / static_cast<std::uint32_t>(b));
  return a / b;
}

/// First index of row r in a packed lower triangle.
[[nodiscard]] DKFAC_HD constexpr std::int64_t packed_row(std::int64_t r) { return r * (r + 1) / 2; }

}  // namespace dkfac::cuda
