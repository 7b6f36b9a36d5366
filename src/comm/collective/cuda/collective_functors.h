#pragma once

#include <cstdint>

#include "core/shared/cuda/device_code.h"

/// Functors over the flags and scales of a step, in place on their device. Their pointers are to
/// memory of the device that runs them; host code calls them too.
namespace dkfac::comm {

struct RaiseFlag {
  const float* count;
  double* flag;
  DKFAC_HD void operator()(std::int64_t) const {
    if (*count != 0) *flag = 1;
  }
};

struct RaiseNonfinite {
  const double* value;
  double* flag;
  DKFAC_HD void operator()(std::int64_t) const {
    if (!(*value - *value == 0)) *flag = 1;
  }
};

struct CountPast {
  double scale, limit;
  const float* largest;
  float* count;
  DKFAC_HD void operator()(std::int64_t) const {
    // Infinite if a part is not finite or exceeds f32: both must be counted.
    if (!(scale * static_cast<double>(*largest) <= limit)) *count += 1;
  }
};

}  // namespace dkfac::comm
