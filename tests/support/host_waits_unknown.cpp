#include "support/host_waits.h"

std::int64_t dkfac::testing::host_waits() { return 0; }
