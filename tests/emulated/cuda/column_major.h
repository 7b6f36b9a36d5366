#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include "emulated/device.h"

/// Shared parts of the emulated libraries of dense linear algebra.
namespace emulated {

/// Index of element (i, j): data[i + j*ld].
template <class T>
struct ColumnMajor {
  T* data;
  std::int64_t ld;
  T& operator()(std::int64_t i, std::int64_t j) const { return data[i + j * ld]; }
};

/// Returns the least leading dimension of a matrix with this many rows.
[[nodiscard]] inline std::int64_t least_ld(std::int64_t rows) { return rows > 1 ? rows : 1; }

/// Rejects a host pointer, on which a kernel would crash.
inline void require_device(const void* data, const char* call) {
  if (!is_device_memory(data))
    throw std::runtime_error(std::string("emulated device: ") + call + " got a host pointer");
}

}  // namespace emulated
