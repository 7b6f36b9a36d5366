#include <algorithm>
#include <atomic>

#include "nn/cpu/simd.h"

namespace dkfac::nn::cpu {
namespace {

Simd detect() noexcept {
  __builtin_cpu_init();
  const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                    __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (wide) return Simd::avx512;
  return __builtin_cpu_supports("avx2") ? Simd::avx2 : Simd::baseline;
}

std::atomic<Simd>& current() noexcept {
  static std::atomic<Simd> level = detect();
  return level;
}

}  // namespace

Simd simd_level() noexcept { return current().load(std::memory_order_relaxed); }

void limit_simd(Simd widest) noexcept {
  current().store(std::min(widest, detect()), std::memory_order_relaxed);
}

}  // namespace dkfac::nn::cpu
