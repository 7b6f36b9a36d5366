#pragma once

#include "dkfac/core/context.h"

#include "kfac/optimizer/updates.h"

/// What each backend defines under the same names; without CUDA stubs that throw DeviceError.
namespace dkfac::kfac::cpu {
#include "kfac/optimizer/backend_updates.inc"
}  // namespace dkfac::kfac::cpu

namespace dkfac::kfac::cuda {
#include "kfac/optimizer/backend_updates.inc"
/// Puts what kernels read of a table on the device.
void upload(Context& ctx, UpdateTable& table);
}  // namespace dkfac::kfac::cuda
