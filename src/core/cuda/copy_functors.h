#pragma once

#include <cstdint>

#include "core/shared/cuda/device_code.h"

/// Load and store functors of a transposition (for_each_transposed).
namespace dkfac::cuda {

template <class T>
struct LoadAt {
  const T* from;
  std::int64_t row_stride, col_stride;
  DKFAC_HD T operator()(std::int64_t r, std::int64_t c) const {
    return from[r * row_stride + c * col_stride];
  }
};

template <class T>
struct StoreAt {
  T* to;
  std::int64_t row_stride, col_stride;
  DKFAC_HD void operator()(std::int64_t r, std::int64_t c, T value) const {
    to[r * row_stride + c * col_stride] = value;
  }
};

}  // namespace dkfac::cuda
