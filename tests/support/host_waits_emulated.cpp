#include "emulated/device.h"
#include "support/host_waits.h"

bool dkfac::testing::is_emulated() { return true; }
std::int64_t dkfac::testing::host_waits() { return emulated::counters().host_waits; }
std::int64_t dkfac::testing::device_allocations() { return emulated::counters().allocations; }
std::int64_t dkfac::testing::kernel_launches() { return emulated::counters().kernels; }
