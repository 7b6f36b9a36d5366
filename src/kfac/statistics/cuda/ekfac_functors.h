#pragma once

#include <cstdint>

#include "core/shared/cuda/device_code.h"

namespace dkfac::kfac::cuda {

/// x[i] <- x[i]^2.
template <class T>
struct SquareInPlace {
  T* x;
  DKFAC_HD void operator()(std::int64_t i) const { x[i] *= x[i]; }
};

/// Squares of x[count, size], to be summed over samples: one column per element of a matrix.
template <class T>
struct SquareOfSample {
  const T* x;
  std::int64_t size;
  DKFAC_HD double operator()(std::int64_t i, std::int64_t sample) const {
    const auto value = static_cast<double>(x[sample * size + i]);
    return value * value;
  }
};

/// to[i] += alpha * sum.
template <class T>
struct AddScaled {
  T* to;
  double alpha;
  DKFAC_HD void operator()(std::int64_t i, double sum) const {
    to[i] = static_cast<T>(static_cast<double>(to[i]) + alpha * sum);
  }
};

}  // namespace dkfac::kfac::cuda
