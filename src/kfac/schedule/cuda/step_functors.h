#pragma once

#include <cstdint>

#include "core/shared/cuda/device_code.h"

/// Functors over the scalar results of a step. Pointers refer to the memory of the device that runs
/// them; host code calls them as well.
namespace dkfac::kfac {

/// Diagonal element row * each + k of consecutive packed triangles of width dim.
template <class T>
struct PackedDiagonal {
  const T* packed;
  std::int64_t dim;
  std::int64_t each = 0;
  DKFAC_HD double operator()(std::int64_t row, std::int64_t k) const {
    k += row * each;
    const std::int64_t size = dim * (dim + 1) / 2, r = k % dim;
    return static_cast<double>(packed[k / dim * size + r * (r + 3) / 2]);
  }
};

/// x[i]^2.
template <class T>
struct Square {
  const T* x;
  DKFAC_HD double operator()(std::int64_t, std::int64_t i) const {
    const auto value = static_cast<double>(x[i]);
    return value * value;
  }
};

}  // namespace dkfac::kfac
