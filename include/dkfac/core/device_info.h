#pragma once

#include <cstdint>
#include <optional>

#include "dkfac/core/device.h"
#include "dkfac/core/export.h"
#include "dkfac/core/types.h"

/// What a device has and has given, for those who measure.
namespace dkfac {

/// Bytes of the pool that device memory comes from, of all threads and contexts of this process.
struct DKFAC_API MemoryUse {
  std::int64_t used = 0, peak_used = 0;          ///< Of tensors and scratch that are alive.
  std::int64_t reserved = 0, peak_reserved = 0;  ///< Taken from the device; the pool keeps it.
};
/// All 0 on the CPU. What libraries take for themselves is not known. Never waits.
[[nodiscard]] DKFAC_API MemoryUse device_memory(Device device);
/// The peaks are what is there now.
DKFAC_API void reset_peak_memory(Device device);

/// Floating-point operations per clock and multiprocessor, two for a multiply-add, of products of
/// matrices of `compute` with sums of at least f32, dense; the tensor cores' where they take that
/// type, for f32 only with `tf32`. From NVIDIA's white papers of Volta (7.0), Turing (7.5), Ampere
/// (8.0) and Hopper (9.0). Nothing for other capabilities: of 8.6 and 8.9 there are parts of
/// different speeds.
[[nodiscard]] DKFAC_API std::optional<double> flops_per_clock(int major, int minor, DType compute,
                                                              bool tf32);

/// Multiprocessors x highest clock x flops_per_clock(): what a utilisation is a share of. The clock
/// is what the driver calls the highest one; data sheets may count with a lower one (H100: 1.98 GHz
/// against 1.83 GHz for tensor cores), and shares are then lower than by the sheet. Nothing on the
/// CPU and where something is not known.
[[nodiscard]] DKFAC_API std::optional<double> peak_flops(Device device, DType compute, bool tf32);

}  // namespace dkfac
