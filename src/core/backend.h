#pragma once

#include "dkfac/core/context.h"
#include "dkfac/core/ops.h"
#include "dkfac/core/tensor_view.h"

/// The functions that each backend defines under the same names: one missing is a link error.

/// Loops on the host, shared by Backend::fast and Backend::reference.
namespace dkfac::cpu {
#include "core/backend_elementwise.inc"
}  // namespace dkfac::cpu

/// cuda: device kernels, or stubs that throw DeviceError.
namespace dkfac::cuda {
#include "core/backend_elementwise.inc"
}  // namespace dkfac::cuda
