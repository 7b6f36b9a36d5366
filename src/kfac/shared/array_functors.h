#pragma once

#include <cstdint>

#include "core/shared/cuda/device_code.h"

/// Operands and outputs of reductions that are arrays.
namespace dkfac::kfac {

/// Element k of an array; the row is ignored.
template <class T>
struct Load {
  const T* from;
  DKFAC_HD T operator()(std::int64_t, std::int64_t k) const { return from[k]; }
};

/// to[i] = value.
template <class T>
struct Store {
  T* to;
  DKFAC_HD void operator()(std::int64_t i, T value) const { to[i] = value; }
};

}  // namespace dkfac::kfac
