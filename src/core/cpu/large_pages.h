#pragma once

#include <cstddef>

namespace dkfac::cpu {

/// Bytes of a large page; memory of at least kLargeTensor bytes begins at a multiple of it.
inline constexpr std::size_t kLargePage = std::size_t{2} << 20;
inline constexpr std::size_t kLargeTensor = 2 * kLargePage;

/// Asks the system to back whole large pages of [data, data + bytes) by such pages: fewer faults
/// when memory is first touched, fewer misses where products walk over wide rows. A wish only.
void prefer_large_pages(void* data, std::size_t bytes) noexcept;

}  // namespace dkfac::cpu
