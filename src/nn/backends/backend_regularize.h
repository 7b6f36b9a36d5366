#pragma once

#include "dkfac/core/context.h"
#include "dkfac/core/tensor_view.h"
#include "dkfac/nn/erase.h"
#include "dkfac/nn/mixup.h"

/// The functions of regularisation that each backend defines under the same names: one missing is a
/// link error.

/// Loops on the host.
namespace dkfac::nn::cpu {
#include "nn/backends/backend_regularize.inc"
}  // namespace dkfac::nn::cpu

/// Device kernels, or stubs that throw DeviceError.
namespace dkfac::nn::cuda {
#include "nn/backends/backend_regularize.inc"
}  // namespace dkfac::nn::cuda
