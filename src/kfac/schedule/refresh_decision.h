#pragma once

#include <algorithm>
#include <cstdint>

#include "dkfac/core/half.h"

#include "comm/collective/wire.h"

namespace dkfac::kfac {

/// What every rank must know of a statistic before its next forward pass.
struct RefreshDecision {
  std::int64_t interval = 1;         ///< Steps until the next refresh, in [1, kMaxInterval].
  double drift = -1;                 ///< As StatisticReport; see rounded_drift().
  int exponent = comm::kNoExponent;  ///< Largest magnitude < 2^exponent.
  bool operator==(const RefreshDecision&) const = default;
};

/// Returns the drift that a decision has: rounded to f16, and finite.
[[nodiscard]] inline double rounded_drift(double drift) {
  return to_float(to_f16(std::clamp(drift, -1.0, static_cast<double>(kMaxF16))));
}

}  // namespace dkfac::kfac
