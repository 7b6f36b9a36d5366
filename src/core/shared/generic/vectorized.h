#pragma once

#include "core/shared/simd.h"

namespace dkfac::cpu {

/// Calls loop(), compiled for the instruction set of the build.
template <class Loop>
auto vectorized(const Loop& loop) {
  return loop();
}

}  // namespace dkfac::cpu
