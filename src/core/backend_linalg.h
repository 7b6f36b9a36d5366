#pragma once

#include "dkfac/core/context.h"
#include "dkfac/core/ops.h"
#include "dkfac/core/tensor_view.h"

/// The functions that each backend defines under the same names: one missing is a link error.

/// Plain C++ without any library.
namespace dkfac::reference {
#include "core/backend_linalg.inc"
}  // namespace dkfac::reference

/// OpenBLAS and oneDNN; what the build lacks forwards to the reference.
namespace dkfac::fast {
#include "core/backend_linalg.inc"
}  // namespace dkfac::fast

/// Host code shared by both host backends.
namespace dkfac::cpu {
#include "core/backend_patches.inc"
}  // namespace dkfac::cpu

/// Device kernels, or stubs that throw DeviceError.
namespace dkfac::cuda {
#include "core/backend_linalg.inc"
#include "core/backend_patches.inc"
}  // namespace dkfac::cuda
