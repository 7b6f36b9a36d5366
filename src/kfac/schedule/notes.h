#pragma once

#include <cstdint>
#include <span>

#include "comm/collective/wire.h"

/// What every rank must know of a statistic before its next forward pass, and its owner decides.
/// Notes travel with other data in whatever type that has, so each number is exact in f16; all
/// ranks, the owner included, go on with the numbers that were sent.
namespace dkfac::kfac {

struct StatisticNote {
  std::int64_t interval = 1;         ///< Steps to the next refresh, in [1, kMaxInterval].
  double drift = -1;                 ///< As StatisticReport; sent rounded to f16.
  int exponent = comm::kNoExponent;  ///< Largest magnitude < 2^exponent.
  bool operator==(const StatisticNote&) const = default;
};

inline constexpr int kNumbersPerNote = 4;
/// Of A, and of G or the BatchNorm Fisher.
inline constexpr int kNotesPerLayer = 2 * kNumbersPerNote;

/// out[kNumbersPerNote]: two digits of the interval, drift, exponent.
void encode_note(const StatisticNote& note, std::span<double> out);
[[nodiscard]] StatisticNote decode_note(std::span<const double> numbers);

}  // namespace dkfac::kfac
