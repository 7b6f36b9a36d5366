#pragma once

#include <cstddef>
#include <cstdint>

namespace dkfac {

/// Converts i >= 0 to the index of a standard container.
[[nodiscard]] constexpr std::size_t index_of(std::int64_t i) { return static_cast<std::size_t>(i); }

}  // namespace dkfac
