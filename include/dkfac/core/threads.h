#pragma once

#include "dkfac/core/export.h"

namespace dkfac {

/// OpenMP threads of parallel regions that the calling thread opens (1 in a build without OpenMP).
[[nodiscard]] DKFAC_API int threads() noexcept;
DKFAC_API void set_threads(int count);  ///< count >= 1; only for the calling thread.
/// Cores that this process may run on.
[[nodiscard]] DKFAC_API int available_cores() noexcept;

}  // namespace dkfac
