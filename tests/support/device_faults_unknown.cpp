#include "support/device_faults.h"

namespace dkfac::testing {

LittleMemory::LittleMemory(std::int64_t) {}
LittleMemory::~LittleMemory() = default;

StarvingLibraries::StarvingLibraries(int) {}
StarvingLibraries::~StarvingLibraries() = default;

NoMemoryPools::NoMemoryPools() = default;
NoMemoryPools::~NoMemoryPools() = default;

UnusedDevices::UnusedDevices() = default;
UnusedDevices::~UnusedDevices() = default;
bool UnusedDevices::has_context(int) { return false; }

void fail_product(int) {}
void show_device(int) {}

}  // namespace dkfac::testing
