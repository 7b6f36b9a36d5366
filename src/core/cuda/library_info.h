#pragma once

#include "dkfac/core/context.h"

namespace dkfac::cuda {

/// Returns devices, driver and libraries; an empty value in a build without CUDA.
[[nodiscard]] CudaInfo library_info();

}  // namespace dkfac::cuda
