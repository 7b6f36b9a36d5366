#pragma once

#include <optional>

#include "dkfac/core/device_info.h"
#include "dkfac/core/stream.h"

/// Runtime functions for measurements. Without CUDA only pool_use() is called, which is then all 0.
namespace dkfac::cuda {

[[nodiscard]] MemoryUse pool_use(Device device);
void reset_pool_peaks(Device device);

struct Speed {
  int major = 0, minor = 0, multiprocessors = 0;
  double clock = 0;  ///< Highest clock in Hz; 0: unknown.
};
[[nodiscard]] Speed speed_of(Device device);

[[nodiscard]] CUevent_st* create_timed_event(Device device);
/// Seconds between two completed events.
[[nodiscard]] double seconds_between(Device device, CUevent_st* from, CUevent_st* to);

}  // namespace dkfac::cuda
