#pragma once

#include <cstdint>

/// Vector instruction set of the host loops, detected at run time so that one build runs on every
/// processor. Loops keep their order of operations, and so their bits, on all of them.
namespace dkfac::cpu {

enum class Simd : std::uint8_t { baseline, avx2, avx512 };

/// Returns the widest set that the processor, its operating system and limit_simd() allow.
[[nodiscard]] Simd simd_level() noexcept;

/// Limits simd_level() to `widest` from now on, in all threads; for tests.
void limit_simd(Simd widest) noexcept;

}  // namespace dkfac::cpu
