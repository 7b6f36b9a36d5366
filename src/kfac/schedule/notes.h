#pragma once

#include <cstdint>
#include <span>

/// What every rank must know of a statistic before its next forward pass, and its owner decides.
/// Notes travel with other data in whatever type that has, so each number is exact in f16; all
/// ranks, the owner included, go on with the numbers that were sent.
namespace dkfac::kfac {

/// Exponent of a statistic whose magnitude is unknown or zero.
inline constexpr int kNoExponent = -2000;

struct StatisticNote {
  std::int64_t interval = 1;   ///< Steps to the next refresh, in [1, kMaxInterval].
  double drift = -1;           ///< As StatisticReport; sent rounded to f16.
  int exponent = kNoExponent;  ///< Largest magnitude < 2^exponent.
  bool operator==(const StatisticNote&) const = default;
};

inline constexpr int kNumbersPerNote = 4;
/// Of A, and of G or the BatchNorm Fisher.
inline constexpr int kNotesPerLayer = 2 * kNumbersPerNote;

/// out[kNumbersPerNote]: two digits of the interval, drift, exponent.
void encode_note(const StatisticNote& note, std::span<double> out);
[[nodiscard]] StatisticNote decode_note(std::span<const double> numbers);

/// The least e with |x| < 2^e; kNoExponent for 0 and what is not finite.
[[nodiscard]] int exponent_of(double x);

}  // namespace dkfac::kfac
