#pragma once

#include "core/shared/simd.h"

namespace dkfac::cpu {

/// loop(), for the instruction set that the compiler was told.
template <class Loop>
auto vectorized(const Loop& loop) {
  return loop();
}

}  // namespace dkfac::cpu
