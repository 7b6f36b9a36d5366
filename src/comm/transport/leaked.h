#pragma once

#include <memory>

#include "dkfac/core/export.h"

namespace dkfac::comm {

/// Keeps memory that a backend may still access after a failure until the process ends. Exported
/// for libdkfac_mpi.so.
DKFAC_API void leak_until_exit(std::shared_ptr<void> memory);

}  // namespace dkfac::comm
