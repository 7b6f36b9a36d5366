#include <nvtx3/nvToolsExt.h>

#include <cuda_profiler_api.h>

#include "core/shared/profiler_range.h"

namespace dkfac {

void begin_range(const char* name) noexcept { (void)nvtxRangePushA(name); }
void end_range() noexcept { (void)nvtxRangePop(); }
void start_profiler() noexcept { (void)cudaProfilerStart(); }
void stop_profiler() noexcept { (void)cudaProfilerStop(); }

}  // namespace dkfac
