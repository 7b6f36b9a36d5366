#pragma once

#include <cstdint>

#include "core/shared/cuda/device_code.h"

/// What becomes of the small numbers of a step, where they are. Pointers into the memory of the
/// device that runs them; host code calls them as well.
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
    // Infinite where a part is not finite, or is beyond f32: neither may pass.
    if (!(scale * static_cast<double>(*largest) <= limit)) *count += 1;
  }
};

}  // namespace dkfac::comm
