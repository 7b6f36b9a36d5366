#include "support/device_faults.h"

namespace dkfac::testing {

LittleMemory::LittleMemory(std::int64_t) {}
LittleMemory::~LittleMemory() = default;

StarvingLibraries::StarvingLibraries(int) {}
StarvingLibraries::~StarvingLibraries() = default;

void fail_product(int) {}
void show_device(int) {}

}  // namespace dkfac::testing
