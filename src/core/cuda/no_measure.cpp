#include "dkfac/core/error.h"

#include "core/cuda/measure.h"

namespace dkfac::cuda {
namespace {

[[noreturn]] void none() { throw DeviceError("[device] this build has no CUDA; use the CPU"); }

}  // namespace

MemoryUse pool_use(Device) { return {}; }
void reset_pool_peaks(Device) {}
Speed speed_of(Device) { none(); }
CUevent_st* create_timed_event(Device) { none(); }
double seconds_between(Device, CUevent_st*, CUevent_st*) { none(); }

}  // namespace dkfac::cuda
