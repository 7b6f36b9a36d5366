#pragma once

#include <cstdint>

#include "core/shared/cuda/device_code.h"
#include "kfac/shared/length_rule.h"

namespace dkfac::kfac::cuda {

template <class T>
struct SetLength {
  StepLength rule;
  const double* p;
  const T* v;
  T* u;
  DKFAC_HD void operator()(std::int64_t i) const {
    const double factor = length_factor(rule, {p[0] + p[3], p[1] + p[4], p[2] + p[5]});
    u[i] = factor == 0 ? v[i] : static_cast<T>(factor) * u[i];
  }
};

}  // namespace dkfac::kfac::cuda
