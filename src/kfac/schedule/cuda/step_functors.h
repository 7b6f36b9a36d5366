#pragma once

#include <cstdint>

#include "core/shared/cuda/device_code.h"

/// What becomes of the small numbers of a step, where they are. Pointers into the memory of the
/// device that runs them; host code calls them as well.
namespace dkfac::kfac {

/// Diagonal element k of all triangles of width dim, one after the other.
template <class T>
struct PackedDiagonal {
  const T* packed;
  std::int64_t dim;
  DKFAC_HD double operator()(std::int64_t /*row*/, std::int64_t k) const {
    const std::int64_t size = dim * (dim + 1) / 2, r = k % dim;
    return static_cast<double>(packed[k / dim * size + r * (r + 3) / 2]);
  }
};

struct StoreNumber {
  double* out;
  DKFAC_HD void operator()(std::int64_t /*row*/, double value) const { *out = value; }
};

}  // namespace dkfac::kfac
