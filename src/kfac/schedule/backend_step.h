#pragma once

#include <cstdint>

#include "dkfac/core/context.h"
#include "dkfac/core/tensor_view.h"

#include "kfac/schedule/staleness.h"

namespace dkfac::kfac::cpu {
#include "kfac/schedule/backend_step.inc"
}  // namespace dkfac::kfac::cpu

/// Device work, or stubs that throw DeviceError.
namespace dkfac::kfac::cuda {
#include "kfac/schedule/backend_step.inc"
}  // namespace dkfac::kfac::cuda
