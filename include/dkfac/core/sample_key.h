#pragma once

#include <cstdint>

namespace dkfac {

/// What keys the randomness of a batch in a step: sample i of this rank has the key (seed, step,
/// first + i), so its numbers are the same at every rank count and after a restart (counter-based,
/// Philox).
struct SampleKey {
  std::uint64_t seed = 1;
  std::int64_t step = 0;   ///< In [0, 2^32).
  std::int64_t first = 0;  ///< Place of this rank's first sample in the global batch.
};

}  // namespace dkfac
