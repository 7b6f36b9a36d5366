#include "nn/cpu/simd.h"

namespace dkfac::nn::cpu {

Simd simd_level() noexcept { return Simd::baseline; }

void limit_simd(Simd) noexcept {}

}  // namespace dkfac::nn::cpu
