#pragma once

#include "dkfac/core/device.h"

namespace dkfac::cuda {

/// Scope that makes a device current and restores the caller's, unless that is the default of a
/// thread that nothing has used yet: restoring it would take memory of a device that belongs to
/// another rank. Launches and library handles work on the current device only. Never throws, so
/// that destructors can use it: an invalid index makes the call that follows fail.
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
