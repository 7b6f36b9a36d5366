#pragma once

#include "dkfac/core/context.h"
#include "dkfac/core/tensor_view.h"

namespace dkfac::comm::cpu {
#include "comm/collective/backend_collective.inc"
}  // namespace dkfac::comm::cpu

/// Device work, or stubs that throw DeviceError.
namespace dkfac::comm::cuda {
#include "comm/collective/backend_collective.inc"
}  // namespace dkfac::comm::cuda
