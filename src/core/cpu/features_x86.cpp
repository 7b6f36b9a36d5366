#include <algorithm>
#include <atomic>
#include <xmmintrin.h>

#include "core/cpu/denormals.h"
#include "core/cpu/library_info.h"
#include "core/shared/simd.h"

namespace dkfac::cpu {
namespace {

Simd detect() noexcept {
  __builtin_cpu_init();
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (avx512) return Simd::avx512;
  return __builtin_cpu_supports("avx2") ? Simd::avx2 : Simd::baseline;
}

std::atomic<Simd>& level() noexcept {
  static std::atomic<Simd> value = detect();
  return value;
}

}  // namespace

Simd simd_level() noexcept { return level().load(std::memory_order_relaxed); }

void limit_simd(Simd widest) noexcept {
  level().store(std::min(widest, detect()), std::memory_order_relaxed);
}

Simd widest_simd() noexcept { return detect(); }

unsigned flush_denormals() noexcept {
  constexpr unsigned results = 1U << 15, operands = 1U << 6;  // FTZ and DAZ of MXCSR
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | results | operands);
  return before;
}

void restore_denormals(unsigned mode) noexcept {
  constexpr unsigned raised = 0x3f;  // exceptions since then stay visible to fetestexcept
  _mm_setcsr(mode | (_mm_getcsr() & raised));
}

}  // namespace dkfac::cpu
