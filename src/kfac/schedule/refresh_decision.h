#pragma once

#include <cstdint>
#include <span>

#include "comm/collective/wire.h"

/// What every rank must know of a statistic before its next forward pass, and its owner decides.
/// RefreshDecisionNumbers travel with other data in whatever type that has, so each number is exact
/// in f16; all ranks, the owner included, go on with the numbers that were sent.
namespace dkfac::kfac {

struct RefreshDecision {
  std::int64_t interval = 1;         ///< Steps to the next refresh, in [1, kMaxInterval].
  double drift = -1;                 ///< As StatisticReport; sent rounded to f16.
  int exponent = comm::kNoExponent;  ///< Largest magnitude < 2^exponent.
  bool operator==(const RefreshDecision&) const = default;
};

inline constexpr int kNumbersPerDecision = 4;
/// Of A, and of G or the BatchNorm Fisher.
inline constexpr int kNumbersPerLayer = 2 * kNumbersPerDecision;

/// out[kNumbersPerDecision]: two digits of the interval, drift, exponent.
void encode_decision(const RefreshDecision& decision, std::span<double> out);
[[nodiscard]] RefreshDecision decode_decision(std::span<const double> numbers);

}  // namespace dkfac::kfac
