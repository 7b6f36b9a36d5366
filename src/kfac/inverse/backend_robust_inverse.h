#pragma once

#include "dkfac/core/context.h"
#include "dkfac/core/tensor_view.h"

#include "kfac/inverse/residual.h"

namespace dkfac::kfac::cpu {
#include "kfac/inverse/backend_robust_inverse.inc"
}  // namespace dkfac::kfac::cpu

/// Device work, or stubs that throw DeviceError.
namespace dkfac::kfac::cuda {
#include "kfac/inverse/backend_robust_inverse.inc"
}  // namespace dkfac::kfac::cuda
