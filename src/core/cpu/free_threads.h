#pragma once

namespace dkfac::cpu {

/// Number of OpenMP threads of a parallel region begun here: threads(), or 1 inside another region.
[[nodiscard]] int free_threads() noexcept;

}  // namespace dkfac::cpu
