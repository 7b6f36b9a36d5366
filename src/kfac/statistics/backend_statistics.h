#pragma once

#include <cstdint>

#include "dkfac/core/context.h"
#include "dkfac/core/tensor_view.h"

#include "kfac/statistics/ekfac_basis.h"
#include "kfac/statistics/norm_data.h"

/// The loops of statistics that are not operations of core: once for the host, once for a device,
/// under the same names. A build without CUDA has stubs that throw DeviceError.
namespace dkfac::kfac::cpu {
#include "kfac/statistics/backend_statistics.inc"
}  // namespace dkfac::kfac::cpu

namespace dkfac::kfac::cuda {
#include "kfac/statistics/backend_statistics.inc"
}  // namespace dkfac::kfac::cuda
