#pragma once

#include <cstdint>

#include "core/shared/cuda/device_code.h"

/// The fixed vectors of +1 and -1 with which inverses are checked (residual.h).
namespace dkfac::kfac {

inline constexpr int kProbes = 2;

/// Element i of vector `probe`: a bit of a hash (the finaliser of SplitMix64).
DKFAC_HD inline double probe_sign(std::int64_t i, int probe) {
  auto h = static_cast<std::uint64_t>(2 * i + probe + 1) * 0x9E3779B97F4A7C15U;
  h = (h ^ (h >> 30U)) * 0xBF58476D1CE4E5B9U;
  h = (h ^ (h >> 27U)) * 0x94D049BB133111EBU;
  return (h >> 63U) != 0 ? 1 : -1;
}

}  // namespace dkfac::kfac
