#pragma once

#include <cuda_runtime_api.h>

#include "dkfac/core/device.h"

namespace dkfac::cuda {

/// Makes a device current and puts the caller's back. Never throws, so that it serves destructors:
/// an invalid index shows in the call that follows.
class DeviceGuard {
 public:
  explicit DeviceGuard(Device device) noexcept {
    if (cudaGetDevice(&before_) != cudaSuccess) before_ = device.index;
    if (before_ != device.index) (void)cudaSetDevice(device.index);
    now_ = device.index;
  }
  ~DeviceGuard() {
    if (before_ != now_) (void)cudaSetDevice(before_);
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int before_ = 0, now_ = 0;
};

}  // namespace dkfac::cuda
