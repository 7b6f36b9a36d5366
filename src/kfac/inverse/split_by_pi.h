#pragma once

#include <cmath>
#include <cstdint>

#include "dkfac/core/cuda/device_code.h"

namespace dkfac::kfac {

/// The shifts, or both sqrt(lambda) with `zero` where a factor is.
struct PiSplit {
  double a, g;
  bool zero;
};

/// What split_damping() says, for root = sqrt(lambda), on the host and on the device.
DKFAC_HD inline PiSplit split_by_pi(double root, double trace_a, std::int64_t dim_a, double trace_g,
                                    std::int64_t dim_g) {
  const double pi = std::sqrt(trace_a / static_cast<double>(dim_a)) /
                    std::sqrt(trace_g / static_cast<double>(dim_g));
  // Also false for the NaN of a negative trace or of 0/0, and for infinity.
  if (!(pi > 0 && pi - pi == 0)) return {root, root, trace_a <= 0 || trace_g <= 0};
  return {pi * root, root / pi, false};
}

}  // namespace dkfac::kfac
