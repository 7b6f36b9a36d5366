#pragma once

#include <cstdint>

#include "core/shared/cuda/device_code.h"

/// Random numbers of dkfac/core/random.h in a form for kernels.
namespace dkfac {

struct PhiloxWords {
  std::uint32_t at[4];
};

/// philox4x32 with the counter {counter, stream} and the key `seed`, lower words first.
[[nodiscard]] DKFAC_HD inline PhiloxWords philox_words(std::uint64_t counter, std::uint64_t stream,
                                                       std::uint64_t seed) noexcept {
  constexpr int kRounds = 10;
  std::uint32_t c0 = static_cast<std::uint32_t>(counter), c2 = static_cast<std::uint32_t>(stream);
  std::uint32_t c1 = static_cast<std::uint32_t>(counter >> 32U);
  std::uint32_t c3 = static_cast<std::uint32_t>(stream >> 32U);
  std::uint32_t k0 = static_cast<std::uint32_t>(seed);
  std::uint32_t k1 = static_cast<std::uint32_t>(seed >> 32U);
  for (int round = 0; round < kRounds; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53U} * c0;
    const std::uint64_t b = std::uint64_t{0xCD9E8D57U} * c2;
    c0 = static_cast<std::uint32_t>(b >> 32U) ^ c1 ^ k0;
    c1 = static_cast<std::uint32_t>(b);
    c2 = static_cast<std::uint32_t>(a >> 32U) ^ c3 ^ k1;
    c3 = static_cast<std::uint32_t>(a);
    k0 += 0x9E3779B9U;
    k1 += 0xBB67AE85U;
  }
  return {{c0, c1, c2, c3}};
}

/// Generator of the same numbers in the same order as Random(seed, stream), for kernels.
class PhiloxStream {
 public:
  DKFAC_HD PhiloxStream(std::uint64_t seed, std::uint64_t stream) noexcept
      : seed_(seed), stream_(stream) {}

  [[nodiscard]] DKFAC_HD std::uint64_t next_u64() noexcept {
    if (used_ == 4) {
      words_ = philox_words(block_, stream_, seed_);
      ++block_;
      used_ = 0;
    }
    const std::uint64_t word =
        words_.at[used_] | (static_cast<std::uint64_t>(words_.at[used_ + 1]) << 32U);
    used_ += 2;
    return word;
  }
  [[nodiscard]] DKFAC_HD double uniform() noexcept {
    return static_cast<double>(next_u64() >> 11U) * 0x1p-53;
  }
  /// In [0, n), without modulo bias. n > 0.
  [[nodiscard]] DKFAC_HD std::uint64_t below(std::uint64_t n) noexcept {
    const std::uint64_t refused = (0 - n) % n;
    std::uint64_t x = next_u64();
    while (x < refused) x = next_u64();
    return x % n;
  }

 private:
  std::uint64_t seed_, stream_, block_ = 0;
  PhiloxWords words_{};
  int used_ = 4;
};

}  // namespace dkfac
