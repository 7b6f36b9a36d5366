#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "dkfac/core/export.h"
#include "dkfac/core/tensor_view.h"

namespace dkfac {

/// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11): four
/// 32-bit words from a 128-bit counter and a 64-bit key. Stateless; the same on every platform.
[[nodiscard]] DKFAC_API std::array<std::uint32_t, 4> philox4x32(
    std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key) noexcept;

/// Counter-based random number generator addressed by (seed, stream): equal arguments give equal
/// numbers at any rank count. `stream` is by convention a hash or an index of the use of the
/// numbers (epoch, sample, layer).
class DKFAC_API Random {
 public:
  explicit Random(std::uint64_t seed, std::uint64_t stream = 0) noexcept
      : seed_(seed), stream_(stream) {}
  [[nodiscard]] std::uint32_t next_u32() noexcept;
  [[nodiscard]] std::uint64_t next_u64() noexcept;
  [[nodiscard]] double uniform() noexcept;  ///< In [0, 1), 53 bits.
  [[nodiscard]] double normal() noexcept;   ///< Mean 0, variance 1 (Box-Muller).
  /// In [0, n), without modulo bias. n > 0.
  [[nodiscard]] std::uint64_t below(std::uint64_t n) noexcept;
  /// Fisher-Yates shuffle.
  void shuffle(std::span<std::int64_t> items) noexcept;

 private:
  std::uint64_t seed_, stream_;
  std::uint64_t block_ = 0;
  std::array<std::uint32_t, 4> words_{};
  int used_ = 4;
};

/// Key of the random numbers of a batch in a step. Sample i of this rank has the key (seed, step,
/// first + i), so its numbers (Philox) are the same at every rank count and after a restart.
struct DKFAC_API SampleKey {
  std::uint64_t seed = 1;
  std::int64_t step = 0;   ///< In [0, 2^32).
  std::int64_t first = 0;  ///< Index of this rank's first sample in the global batch.
};

/// Fills host memory (f64 or f32, contiguous) with lo + (hi - lo) * uniform.
DKFAC_API void fill_uniform(TensorView x, double lo, double hi, Random& random);
/// Fills host memory (f64 or f32, contiguous) with mean + stddev * normal.
DKFAC_API void fill_normal(TensorView x, double mean, double stddev, Random& random);

}  // namespace dkfac
