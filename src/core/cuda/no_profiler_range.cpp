#include "core/shared/profiler_range.h"

namespace dkfac {

void begin_range(const char*) noexcept {}
void end_range() noexcept {}
void start_profiler() noexcept {}
void stop_profiler() noexcept {}

}  // namespace dkfac
