#pragma once

#include "kfac/refresh.h"

namespace dkfac::kfac::cpu {
#include "kfac/backend_refresh.inc"
}  // namespace dkfac::kfac::cpu

/// Device work, or stubs that throw DeviceError.
namespace dkfac::kfac::cuda {
#include "kfac/backend_refresh.inc"
}  // namespace dkfac::kfac::cuda
