#include "support/host_waits.h"

std::int64_t dkfac::testing::host_waits() { return 0; }
std::int64_t dkfac::testing::kernel_launches() { return 0; }
