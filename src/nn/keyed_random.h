#pragma once

#include <array>
#include <cstdint>

#include "dkfac/core/error.h"
#include "dkfac/core/random.h"
#include "dkfac/nn/sample_key.h"

namespace dkfac::nn {

/// Keeps numbers for one purpose apart from those for others with the same seed.
enum class Draw : std::uint32_t {
  augmentation = 0x61756773,
  label = 0x6C61626C,
  mixup = 0x6D697875,
  erasing = 0x65726173
};

/// Four random words of one sample; `when` is an epoch or a step.
[[nodiscard]] inline std::array<std::uint32_t, 4> keyed_words(std::uint64_t seed, Draw draw,
                                                              std::uint32_t when,
                                                              std::int64_t sample) {
  const auto n = static_cast<std::uint64_t>(sample);
  return philox4x32({static_cast<std::uint32_t>(n), static_cast<std::uint32_t>(n >> 32U), when,
                     static_cast<std::uint32_t>(draw)},
                    {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32U)});
}

/// As many random numbers of sample `i` of the batch as are wanted: a stream whose address is drawn
/// from the key.
[[nodiscard]] inline Random keyed_random(const SampleKey& key, Draw draw, std::int64_t i) {
  const auto w = keyed_words(key.seed, draw, static_cast<std::uint32_t>(key.step), key.first + i);
  return Random(w[0] | (std::uint64_t{w[1]} << 32U), w[2] | (std::uint64_t{w[3]} << 32U));
}

inline void check_key(const char* operation, const SampleKey& key) {
  DKFAC_CHECK(key.step >= 0 && key.step < (std::int64_t{1} << 32U) && key.first >= 0, "[",
              operation, "] step is ", key.step, " and the place in the batch ", key.first,
              "; they must be >= 0, the step below 2^32");
}

}  // namespace dkfac::nn
