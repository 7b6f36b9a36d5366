#pragma once

#include "nn/cpu/simd.h"

namespace dkfac::nn::cpu {

template <class Loop>
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512"), gnu::flatten]] void
with_avx512(const Loop& loop) {
  loop();
}

template <class Loop>
[[gnu::target("avx2"), gnu::flatten]] void with_avx2(const Loop& loop) {
  loop();
}

/// loop(), compiled once per instruction set. All it calls must be inlinable: `flatten` takes it
/// along.
template <class Loop>
void vectorized(const Loop& loop) {
  const Simd level = simd_level();
  if (level == Simd::avx512) return with_avx512(loop);
  if (level == Simd::avx2) return with_avx2(loop);
  loop();
}

}  // namespace dkfac::nn::cpu
