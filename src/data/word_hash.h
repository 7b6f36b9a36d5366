#pragma once

#include <bit>
#include <cstdint>
#include <span>

namespace dkfac::data {

/// 64-bit hash of a sequence of words, which is the same everywhere.
class WordHash {
 public:
  explicit WordHash(std::uint64_t start = 0) : value_(start) {}
  template <class... Words>
  void mix(Words... words) {
    (mix_one(static_cast<std::uint64_t>(words)), ...);
  }
  void mix_bits(std::span<const double> values) {
    for (const double value : values) mix(std::bit_cast<std::uint64_t>(value));
  }
  [[nodiscard]] std::uint64_t value() const { return value_; }

 private:
  void mix_one(std::uint64_t word) {
    value_ = (value_ ^ word) * 0x9E3779B97F4A7C15U;  // Odd, so that no word is lost.
    value_ ^= value_ >> 29U;
  }
  std::uint64_t value_;
};

}  // namespace dkfac::data
