#pragma once

#include <algorithm>
#include <cstdint>

#include "dkfac/kfac/report.h"

namespace dkfac::testing {

/// Bytes of comparing the gradients over the ranks, which a Preconditioner does in its first
/// update: 16 f64 of each of up to four layers, and the length of the message of each rank.
inline std::uint64_t comparison_bytes(const kfac::StepReport& report, int ranks,
                                      std::int64_t layers) {
  if (ranks == 1 || report.step > 1) return 0;
  return static_cast<std::uint64_t>(ranks * (4 + 16 * 8 * std::min<std::int64_t>(layers, 4)));
}

}  // namespace dkfac::testing
