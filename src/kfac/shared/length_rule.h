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

/// Bound of |V| in a step, as a multiple of the mean of the lengths that the layer's steps had.
inline constexpr double kLengthBound = 1.5;
/// Weight of a new length in that mean, once 1/weight steps have entered it alike.
inline constexpr double kLengthWeight = 0.03;

/// Returns the factor of a layer's direction (docs/math.md, "Step length"): |V|/|U| or
/// <U,V>/|U|^2. 0 where the direction has no usable length: the gradient takes its place.
[[nodiscard]] DKFAC_HD inline double length_factor(StepLength rule, LengthProducts p) {
  if (!(p.uu > 0) || !(p.uu - p.uu == 0)) return 0;
  const double s = rule == StepLength::projection ? p.uv / p.uu : std::sqrt(p.vv / p.uu);
  return s > 0 && s - s == 0 ? s : 0;
}

/// Returns by what to multiply a gradient of this length, at most 1, and enters the result into the
/// layer's lengths: [0] their mean, [1] their number. A length of 0 or not finite is not entered.
[[nodiscard]] DKFAC_HD inline double bound_length(double length, double* lengths) {
  if (!(length > 0) || !(length - length == 0)) return 1;
  const double bound = kLengthBound * lengths[0];
  const double factor = lengths[1] > 0 && length > bound ? bound / length : 1;
  lengths[1] += 1;
  const double weight = 1 / lengths[1];
  lengths[0] += (weight > kLengthWeight ? weight : kLengthWeight) * (factor * length - lengths[0]);
  return factor;
}

/// Stores in factors[2] by what to multiply a layer's direction and, where that is 0, the gradient
/// in its place. p[2,3]: vv, uu, uv of weight and bias.
DKFAC_HD inline void store_length_factors(StepLength rule, const double* p, double* lengths,
                                          double* factors) {
  const LengthProducts sums{.vv = p[0] + p[3], .uu = p[1] + p[4], .uv = p[2] + p[5]};
  factors[1] = bound_length(std::sqrt(sums.vv), lengths);
  factors[0] = factors[1] * length_factor(rule, sums);
}

}  // namespace dkfac::kfac
