#pragma once

#include "dkfac/core/export.h"

namespace dkfac {

/// Number of OpenMP threads of the calling thread's parallel regions (1 in a build without OpenMP).
[[nodiscard]] DKFAC_API int threads() noexcept;
DKFAC_API void set_threads(int count);  ///< count >= 1; affects the calling thread only.
/// Number of cores on which this process may run.
[[nodiscard]] DKFAC_API int available_cores() noexcept;

}  // namespace dkfac
