#pragma once

#include "core/shared/simd.h"

namespace dkfac::cpu {

template <class Loop>
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512"), gnu::flatten]] auto
run_avx512(const Loop& loop) {
  return loop();
}

template <class Loop>
[[gnu::target("avx2"), gnu::flatten]] auto run_avx2(const Loop& loop) {
  return loop();
}

/// Compiles loop() for each instruction set and calls the version for simd_level(). The body must
/// be inlinable: `flatten` inlines what it calls, so that this is compiled for the set too.
template <class Loop>
auto vectorized(const Loop& loop) {
  switch (simd_level()) {
    case Simd::avx512:
      return run_avx512(loop);
    case Simd::avx2:
      return run_avx2(loop);
    case Simd::baseline:
      break;
  }
  return loop();
}

}  // namespace dkfac::cpu
