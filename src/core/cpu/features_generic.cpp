#include "core/cpu/library_info.h"

namespace dkfac {

bool cpu::has_avx512() noexcept { return false; }

}  // namespace dkfac
