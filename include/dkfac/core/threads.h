#pragma once

namespace dkfac {

/// OpenMP threads of parallel regions that the calling thread opens (1 in a build without OpenMP).
[[nodiscard]] int threads() noexcept;
void set_threads(int count);  ///< count >= 1; only for the calling thread.
/// Cores that this process may run on.
[[nodiscard]] int available_cores() noexcept;

}  // namespace dkfac
