#include <cstdlib>

#include "emulated/device.h"
#include "emulated/library_faults.h"
#include "support/device_faults.h"

namespace dkfac::testing {

LittleMemory::LittleMemory(std::int64_t bytes) {
  emulated::limit_memory(emulated::counters().live_bytes + bytes);
}
LittleMemory::~LittleMemory() { emulated::limit_memory(0); }

StarvingLibraries::StarvingLibraries(int trims) { emulated::starve_libraries(trims); }
StarvingLibraries::~StarvingLibraries() { emulated::starve_libraries(0); }

NoMemoryPools::NoMemoryPools() {
  setenv("DKFAC_EMULATED_DEVICES", "2", 1);
  emulated::hide_memory_pools(true);
}
NoMemoryPools::~NoMemoryPools() {
  unsetenv("DKFAC_EMULATED_DEVICES");
  emulated::hide_memory_pools(false);
}

UnusedDevices::UnusedDevices() {
  setenv("DKFAC_EMULATED_DEVICES", "3", 1);
  emulated::forget_contexts();
}
UnusedDevices::~UnusedDevices() { unsetenv("DKFAC_EMULATED_DEVICES"); }
bool UnusedDevices::has_context(int device) { return emulated::has_context(device); }

void fail_product(int calls) { emulated::fail_product(calls); }
void show_device(int device) { emulated::show_device(device); }

}  // namespace dkfac::testing
