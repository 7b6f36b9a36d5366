#pragma once

#include <cstdint>

/// Which vector instructions the host loops use: found at run time, so that one build runs
/// everywhere. Loops keep their order of operations on all of them, and so their bits.
namespace dkfac::cpu {

enum class Simd : std::uint8_t { baseline, avx2, avx512 };

/// The widest that the processor, its operating system and limit_simd() allow.
[[nodiscard]] Simd simd_level() noexcept;

/// For tests: nothing wider than `widest` from now on, in all threads.
void limit_simd(Simd widest) noexcept;

}  // namespace dkfac::cpu
