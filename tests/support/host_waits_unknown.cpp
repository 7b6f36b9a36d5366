#include "support/host_waits.h"

bool dkfac::testing::is_emulated() { return false; }
std::int64_t dkfac::testing::host_waits() { return 0; }
std::int64_t dkfac::testing::device_allocations() { return 0; }
std::int64_t dkfac::testing::kernel_launches() { return 0; }
std::int64_t dkfac::testing::products() { return 0; }
std::int64_t dkfac::testing::unaligned_products() { return 0; }
bool dkfac::testing::ends_at_stray_reads() { return false; }
