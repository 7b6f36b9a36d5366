#pragma once

#include "core/shared/kernel.h"
#include "optim/updates.h"

/// Kernels of updates over the parts of a table, which has been checked and is not empty. Arguments
/// as in updates.h.
namespace dkfac::optim {

#define DKFAC_DECLARE(kernel, Pass) \
  DKFAC_KERNEL(void, kernel, UpdateTable& table, const Pass& pass);
DKFAC_ELEMENTWISE_PASSES(DKFAC_DECLARE)
#undef DKFAC_DECLARE
DKFAC_KERNEL(void, lars_update, UpdateTable& table, const LarsOptions& options, double lr);
DKFAC_KERNEL(void, kfac_update, UpdateTable& table, const KfacUpdate& update);

namespace cuda {

/// Copies the part of a table that kernels read to the device.
DKFAC_DEVICE_KERNEL(void, upload, UpdateTable& table);

}  // namespace cuda
}  // namespace dkfac::optim
