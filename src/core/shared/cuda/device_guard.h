#pragma once

#include "dkfac/core/device.h"

namespace dkfac::cuda {

/// Makes a device current and puts the caller's back. Launches and library handles work on the
/// current device only. Never throws, so that it serves destructors: an invalid index shows in the
/// call that follows.
class DeviceGuard {
 public:
  explicit DeviceGuard(Device device) noexcept;
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int before_ = 0, now_ = 0;
};

}  // namespace dkfac::cuda
