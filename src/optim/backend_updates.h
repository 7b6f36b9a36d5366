#pragma once

#include "dkfac/core/context.h"

#include "optim/updates.h"

/// What each backend defines under the same names; without CUDA stubs that throw DeviceError.
namespace dkfac::optim::cpu {
#include "optim/backend_updates.inc"
}  // namespace dkfac::optim::cpu

namespace dkfac::optim::cuda {
#include "optim/backend_updates.inc"
/// Puts what kernels read of a table on the device.
void upload(Context& ctx, UpdateTable& table);
}  // namespace dkfac::optim::cuda
