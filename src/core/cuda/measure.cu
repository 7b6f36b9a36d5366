#include <cuda_runtime_api.h>

#include "core/cuda/measure.h"
#include "core/cuda/runtime.h"
#include "core/shared/cuda/device_guard.h"
#include "core/shared/cuda/handles.h"

namespace dkfac::cuda {
namespace {

int attribute(cudaDeviceAttr which, Device device) {
  int value = 0;
  check_runtime(cudaDeviceGetAttribute(&value, which, device.index), "cudaDeviceGetAttribute");
  return value;
}

}  // namespace

Speed speed_of(Device device) {
  check_device(device);
  return {.major = attribute(cudaDevAttrComputeCapabilityMajor, device),
          .minor = attribute(cudaDevAttrComputeCapabilityMinor, device),
          .multiprocessors = attribute(cudaDevAttrMultiProcessorCount, device),
          .clock = 1e3 * attribute(cudaDevAttrClockRate, device)};
}

CUevent_st* create_timed_event(Device device) {
  check_device(device);
  const DeviceGuard guard(device);
  cudaEvent_t event = nullptr;
  check_runtime(cudaEventCreateWithFlags(&event, cudaEventDefault), "cudaEventCreateWithFlags");
  return event;
}

double seconds_between(Device device, CUevent_st* from, CUevent_st* to) {
  const DeviceGuard guard(device);
  float milliseconds = 0;
  check_runtime(cudaEventElapsedTime(&milliseconds, from, to), "cudaEventElapsedTime");
  return 1e-3 * static_cast<double>(milliseconds);
}

}  // namespace dkfac::cuda
