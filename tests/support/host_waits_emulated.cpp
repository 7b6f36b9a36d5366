#include "emulated/device.h"
#include "support/host_waits.h"

/// Defined only under AddressSanitizer.
extern "C" [[gnu::weak]] int __asan_address_is_poisoned(const volatile void*);

bool dkfac::testing::is_emulated() { return true; }
std::int64_t dkfac::testing::host_waits() { return emulated::counters().host_waits; }
std::int64_t dkfac::testing::device_allocations() { return emulated::counters().allocations; }
std::int64_t dkfac::testing::kernel_launches() { return emulated::counters().kernels; }
std::int64_t dkfac::testing::products() { return emulated::counters().products; }
std::int64_t dkfac::testing::unaligned_products() {
  return emulated::counters().unaligned_products;
}
bool dkfac::testing::ends_at_stray_reads() { return __asan_address_is_poisoned != nullptr; }
