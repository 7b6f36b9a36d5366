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

/// What takes the place of a layer's gradient: direction * U + gradient * V.
struct LengthFactors {
  double direction, gradient;
};

/// Least cosine of a layer's step and its gradient.
inline constexpr double kLeastCosine = 0.3;
/// Bound of |V| in a step, as a multiple of the mean of the lengths that the layer's steps had.
inline constexpr double kLengthBound = 1.4;
/// Weight of a new length in that mean, once 1/weight steps have entered it alike.
inline constexpr double kLengthWeight = 0.03;

/// Returns the step of a layer by its rule (docs/math.md, "Step length"), before the bound of
/// growth: the gradient itself where the direction has no usable length.
[[nodiscard]] DKFAC_HD inline LengthFactors length_factors(StepLength rule, LengthProducts p) {
  const double v = std::sqrt(p.vv), u = std::sqrt(p.uu), cosine = p.uv / (v * u);
  const bool usable = p.vv > 0 && p.uu > 0 && cosine > 0;  // Not where a product is a NaN.
  if (!usable || !(v / u > 0) || !(v / u - v / u == 0)) return {.direction = 0, .gradient = 1};
  if (rule == StepLength::projection) return {.direction = cosine * v / u, .gradient = 0};
  if (cosine >= kLeastCosine) return {.direction = v / u / std::sqrt(cosine), .gradient = 0};
  // The parts of the step across V and along V are those of the least cosine.
  const double length = 1 / std::sqrt(kLeastCosine);
  const double turn = std::sqrt((1 - kLeastCosine * kLeastCosine) / (1 - cosine * cosine));
  return {.direction = length * turn * v / u, .gradient = length * (kLeastCosine - turn * cosine)};
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

/// Stores length_factors() times bound_length() in factors[2]. p[2,3]: vv, uu, uv of weight and
/// bias.
DKFAC_HD inline void store_length_factors(StepLength rule, const double* p, double* lengths,
                                          double* factors) {
  const LengthProducts sums{.vv = p[0] + p[3], .uu = p[1] + p[4], .uv = p[2] + p[5]};
  const LengthFactors step = length_factors(rule, sums);
  const double bound = bound_length(std::sqrt(sums.vv), lengths);
  factors[0] = bound * step.direction;
  factors[1] = bound * step.gradient;
}

}  // namespace dkfac::kfac
