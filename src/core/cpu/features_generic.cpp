#include "core/cpu/denormals.h"
#include "core/cpu/library_info.h"
#include "core/shared/simd.h"

namespace dkfac::cpu {

Simd simd_level() noexcept { return Simd::baseline; }
void limit_simd(Simd) noexcept {}
Simd widest_simd() noexcept { return Simd::baseline; }

unsigned flush_denormals() noexcept { return 0; }
void restore_denormals(unsigned) noexcept {}

}  // namespace dkfac::cpu
