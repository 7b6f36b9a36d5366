#pragma once

#include <cstdint>

#include "core/shared/cuda/device_code.h"

namespace dkfac::kfac::cuda {

/// Output of a reduction: to[i] = value.
template <class T>
struct Store {
  T* to;
  DKFAC_HD void operator()(std::int64_t i, T value) const { to[i] = value; }
};

}  // namespace dkfac::kfac::cuda
