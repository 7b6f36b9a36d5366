#include "core/cpu/library_info.h"

namespace dkfac {

bool cpu::has_avx512() noexcept { return __builtin_cpu_supports("avx512f") != 0; }

}  // namespace dkfac
