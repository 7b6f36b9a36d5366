#pragma once

#include <cstdint>

#include "core/shared/cuda/device_code.h"
#include "kfac/shared/length_rule.h"

namespace dkfac::kfac::cuda {

struct SetLengthFactors {
  StepLength rule;
  const double* products;
  const double* before;
  double* lengths;
  double* factors;
  DKFAC_HD void operator()(std::int64_t /*i*/) const {
    store_length_factors(rule, products, before, lengths, factors);
  }
};

template <class T>
struct SetLength {
  const double* factors;
  const T* v;
  T* u;
  DKFAC_HD void operator()(std::int64_t i) const {
    const auto direction = static_cast<T>(factors[0]), gradient = static_cast<T>(factors[1]);
    u[i] = gradient * v[i] + (direction == 0 ? T{0} : direction * u[i]);
  }
};

}  // namespace dkfac::kfac::cuda
