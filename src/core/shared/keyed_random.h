#pragma once

#include <cstdint>

#include "dkfac/core/error.h"
#include "dkfac/core/random.h"

#include "core/shared/cuda/device_code.h"
#include "core/shared/philox.h"

namespace dkfac {

/// Purpose of random numbers; different purposes get independent numbers from one seed.
enum class Draw : std::uint32_t {
  augmentation = 0x61756773,
  label = 0x6C61626C,
  mixup = 0x6D697875,
  erasing = 0x65726173,
  crop = 0x63726F70
};

/// Returns four random words of one sample; `when` is an epoch or a step.
[[nodiscard]] DKFAC_HD inline PhiloxWords keyed_words(std::uint64_t seed, Draw draw,
                                                      std::uint32_t when, std::int64_t sample) {
  return philox_words(static_cast<std::uint64_t>(sample),
                      when | (static_cast<std::uint64_t>(draw) << 32U), seed);
}

/// Address of the random numbers of one sample of a batch: Random(seed, stream) or, in kernels,
/// PhiloxStream(seed, stream) generates them, with equal results.
struct StreamAddress {
  std::uint64_t seed, stream;
};
[[nodiscard]] DKFAC_HD inline StreamAddress keyed_address(const SampleKey& key, Draw draw,
                                                          std::int64_t i) {
  const PhiloxWords w =
      keyed_words(key.seed, draw, static_cast<std::uint32_t>(key.step), key.first + i);
  return {w.at[0] | (static_cast<std::uint64_t>(w.at[1]) << 32U),
          w.at[2] | (static_cast<std::uint64_t>(w.at[3]) << 32U)};
}
[[nodiscard]] inline Random keyed_random(const SampleKey& key, Draw draw, std::int64_t i) {
  const StreamAddress address = keyed_address(key, draw, i);
  return Random(address.seed, address.stream);
}
[[nodiscard]] DKFAC_HD inline PhiloxStream keyed_stream(const SampleKey& key, Draw draw,
                                                        std::int64_t i) {
  const StreamAddress address = keyed_address(key, draw, i);
  return {address.seed, address.stream};
}

inline void check_key(const char* operation, const SampleKey& key) {
  DKFAC_CHECK(key.step >= 0 && key.step < (std::int64_t{1} << 32U) && key.first >= 0, "[",
              operation, "] step is ", key.step, " and the place in the batch ", key.first,
              "; they must be >= 0, the step below 2^32");
}

}  // namespace dkfac
