#pragma once

#include <cstddef>

namespace dkfac::cpu {

/// Bytes of a large page; memory of at least kLargeTensor bytes is aligned to it.
inline constexpr std::size_t kLargePage = std::size_t{2} << 20;
inline constexpr std::size_t kLargeTensor = 2 * kLargePage;

/// Advises the system to back [data, data + bytes) by large pages where they are whole. This saves
/// page faults at the first access and TLB misses in products over wide rows. Failures are ignored.
void prefer_large_pages(void* data, std::size_t bytes) noexcept;

}  // namespace dkfac::cpu
