#pragma once

#include <cstdint>

namespace dkfac::testing {

/// Whether the device is the emulated one.
[[nodiscard]] bool is_emulated();
/// How often the host has waited for the device so far; 0 on a real device, which cannot count it.
[[nodiscard]] std::int64_t host_waits();
/// How often device or pinned memory has been allocated, or device memory freed, so far; 0 on a
/// real device.
[[nodiscard]] std::int64_t device_allocations();
/// How many kernels have been launched so far; 0 on a real device.
[[nodiscard]] std::int64_t kernel_launches();
/// How many products have been asked of cuBLAS so far, a batch counting once; 0 on a real device.
[[nodiscard]] std::int64_t products();
/// How many of them had rows that do not begin at multiples of 16 bytes; 0 on a real device.
[[nodiscard]] std::int64_t unaligned_products();

/// Whether a kernel that reads past a block of device memory ends the program: on the emulated
/// device under AddressSanitizer.
[[nodiscard]] bool ends_at_stray_reads();

}  // namespace dkfac::testing
