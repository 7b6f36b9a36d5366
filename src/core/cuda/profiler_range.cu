#include <nvtx3/nvToolsExt.h>

#include "core/shared/profiler_range.h"

namespace dkfac {

void begin_range(const char* name) noexcept { (void)nvtxRangePushA(name); }
void end_range() noexcept { (void)nvtxRangePop(); }

}  // namespace dkfac
