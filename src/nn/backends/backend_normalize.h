#pragma once

#include "dkfac/core/context.h"
#include "dkfac/core/tensor_view.h"

#include "nn/backends/norm_shape.h"

/// The functions of batch normalisation that each backend defines under the same names: one missing
/// is a link error.

/// Loops on the host.
namespace dkfac::nn::cpu {
#include "nn/backends/backend_normalize.inc"
}  // namespace dkfac::nn::cpu

/// Device kernels, or stubs that throw DeviceError.
namespace dkfac::nn::cuda {
#include "nn/backends/backend_normalize.inc"
}  // namespace dkfac::nn::cuda

/// Either, by the device of the context.
namespace dkfac::nn::kernels {
#include "nn/backends/backend_normalize.inc"
}  // namespace dkfac::nn::kernels
