#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>

#include "dkfac/core/error.h"
#include "dkfac/core/types.h"

namespace dkfac::detail {

/// Alignment of host storage: a cache line and the widest vector register.
inline constexpr std::size_t kAlignment = 64;
/// Alignment of device scratch, that of cudaMalloc: libraries divide their workspaces into parts by
/// offsets from an address that they expect to be aligned like this.
inline constexpr std::size_t kDeviceAlignment = 256;

[[nodiscard]] constexpr std::size_t align_up(std::size_t bytes,
                                             std::size_t alignment = kAlignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

/// Bytes of a row-major tensor. Throws InvalidArgument when they do not fit into ptrdiff_t.
[[nodiscard]] inline std::size_t checked_bytes(std::string_view operation, const Shape& shape,
                                               DType dtype) {
  if (shape.numel() == 0) return 0;
  constexpr std::int64_t kLimit =
      std::numeric_limits<std::ptrdiff_t>::max() - static_cast<std::ptrdiff_t>(kAlignment);
  std::int64_t left = kLimit / static_cast<std::int64_t>(size_of(dtype));
  for (int i = 0; i < shape.ndim(); ++i) {
    left /= shape[i];
    DKFAC_CHECK(left > 0, "[", operation, "] the size of ", shape, " ", dtype,
                " overflows; at most ", kLimit, " bytes are possible");
  }
  return static_cast<std::size_t>(shape.numel()) * size_of(dtype);
}

}  // namespace dkfac::detail
