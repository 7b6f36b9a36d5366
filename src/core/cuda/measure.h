#pragma once

#include <optional>

#include "dkfac/core/device_info.h"
#include "dkfac/core/stream.h"

/// What measuring needs of a device runtime. Without CUDA there is no device, and nobody calls
/// these but pool_use(), which then is all 0.
namespace dkfac::cuda {

[[nodiscard]] MemoryUse pool_use(Device device);
void reset_pool_peaks(Device device);

struct Speed {
  int major = 0, minor = 0, multiprocessors = 0;
  double clock = 0;  ///< The highest, in Hz; 0: not known.
};
[[nodiscard]] Speed speed_of(Device device);

[[nodiscard]] CUevent_st* create_timed_event(Device device);
/// Of two that have happened.
[[nodiscard]] double seconds_between(Device device, CUevent_st* from, CUevent_st* to);

}  // namespace dkfac::cuda
