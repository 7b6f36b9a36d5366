#pragma once

#include "nn/cpu/simd.h"

namespace dkfac::nn::cpu {

/// loop(), with the instructions that the compiler was allowed.
template <class Loop>
void vectorized(const Loop& loop) {
  loop();
}

}  // namespace dkfac::nn::cpu
