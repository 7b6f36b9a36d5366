#pragma once

#include "dkfac/core/context.h"
#include "dkfac/core/tensor_view.h"

/// What each backend defines under the same names; without CUDA stubs that throw DeviceError.
namespace dkfac::kfac::cpu {
#include "kfac/precondition/backend_clip.inc"
}  // namespace dkfac::kfac::cpu

namespace dkfac::kfac::cuda {
#include "kfac/precondition/backend_clip.inc"
}  // namespace dkfac::kfac::cuda
