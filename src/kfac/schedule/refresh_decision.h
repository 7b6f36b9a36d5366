#pragma once

#include <cstdint>
#include <span>

#include "comm/collective/wire.h"

/// What every rank must know of a statistic before its next forward pass; decided by its owner.
/// Decisions are sent along with other data in its type, so each number is exact in f16. All ranks,
/// including the owner, use the numbers that were sent.
namespace dkfac::kfac {

struct RefreshDecision {
  std::int64_t interval = 1;         ///< Steps until the next refresh, in [1, kMaxInterval].
  double drift = -1;                 ///< As StatisticReport; sent rounded to f16.
  int exponent = comm::kNoExponent;  ///< Largest magnitude < 2^exponent.
  bool operator==(const RefreshDecision&) const = default;
};

inline constexpr int kNumbersPerDecision = 4;

/// Writes out[kNumbersPerDecision]: two digits of the interval, drift, exponent.
void encode_decision(const RefreshDecision& decision, std::span<double> out);
[[nodiscard]] RefreshDecision decode_decision(std::span<const double> numbers);

}  // namespace dkfac::kfac
