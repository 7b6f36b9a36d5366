#pragma once

namespace dkfac::cpu {

/// OpenMP threads for a parallel region begun here: threads(), or 1 inside of another one.
[[nodiscard]] int free_threads() noexcept;

}  // namespace dkfac::cpu
