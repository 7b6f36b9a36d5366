#pragma once

#include <cstdint>

/// Vector instructions of the loops of this layer, found at run time. The order of operations is
/// that of the source on all of them, and so are the bits.
namespace dkfac::nn::cpu {

enum class Simd : std::uint8_t { baseline, avx2, avx512 };

/// The widest that processor, operating system and limit_simd() allow.
[[nodiscard]] Simd simd_level() noexcept;

/// For tests: from now on nothing wider, in all threads.
void limit_simd(Simd widest) noexcept;

}  // namespace dkfac::nn::cpu
