#pragma once

#include "kfac/inverse/refresh.h"

namespace dkfac::kfac::cpu {
#include "kfac/inverse/backend_refresh.inc"
}  // namespace dkfac::kfac::cpu

/// Device work, or stubs that throw DeviceError.
namespace dkfac::kfac::cuda {
#include "kfac/inverse/backend_refresh.inc"
}  // namespace dkfac::kfac::cuda
