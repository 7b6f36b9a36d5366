#pragma once

#include <cmath>

#include "dkfac/kfac/options.h"

#include "core/shared/cuda/device_code.h"

/// The arithmetic of the step length, shared by host and devices.
namespace dkfac::kfac {

/// Products of one layer's gradient V and direction U, over weight and bias.
struct LengthProducts {
  double vv, uu, uv;
};

/// Returns the factor of a layer's direction (docs/math.md, "Step length"): |V|/|U| or
/// <U,V>/|U|^2. 0 where the direction has no usable length: the gradient takes its place.
[[nodiscard]] DKFAC_HD inline double length_factor(StepLength rule, LengthProducts p) {
  if (!(p.uu > 0) || !(p.uu - p.uu == 0)) return 0;
  const double s = rule == StepLength::projection ? p.uv / p.uu : std::sqrt(p.vv / p.uu);
  return s > 0 && s - s == 0 ? s : 0;
}

}  // namespace dkfac::kfac
