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

/// What is kept of a layer's steps: the mean of |V| as bounded, how many entered it, the mean of
/// the share of |V| that the bound took, in [0, 1], that of the cosine of V and the step before it;
/// and how many numbers these are.
inline constexpr int kMeanLength = 0, kSteps = 1, kTaken = 2, kAlong = 3, kLengths = 4;

/// Least cosine of a layer's step and its gradient where nothing turns it to the gradient.
inline constexpr double kLeastCosine = 0.3;
/// Bound of |V| in a step, as a multiple of the mean of the lengths that the layer's steps had.
inline constexpr double kLengthBound = 1.4;
/// Least weight of a new length in that mean, once 1/weight steps have entered it alike.
inline constexpr double kLengthWeight = 0.03;
/// What the mean cosine of gradients and the steps before them adds to it, times that cosine, while
/// it is positive: a length that grows along the way is no overshoot.
inline constexpr double kAgreement = 0.5;
/// Weight of a new share in the mean of those that the bound took, and of a new cosine.
inline constexpr double kTakenWeight = 0.1;
/// Steps in which a layer's exponent falls from 1.
inline constexpr double kCautiousSteps = 10;
/// How fast it rises to 1 while gradients oppose the steps before them, and how fast `gradual`
/// turns a step to a gradient that agrees with them.
inline constexpr double kCaution = 20;
/// Steps in which those of `gradual` leave the gradient.
inline constexpr double kGradualSteps = 60;

/// Returns the p of a step's length |V| cos^p: 1, with which a step bears every rate that the
/// gradient bears, in the first steps and where they overshoot, otherwise -1/2. `steps` counts this
/// one; `along`: the mean cosine of gradients and the steps before them.
[[nodiscard]] DKFAC_HD inline double length_exponent(double steps, double along) {
  const double first = 1 - steps / kCautiousSteps, opposed = -kCaution * along;
  double caution = first > opposed ? first : opposed;
  if (caution > 1) caution = 1;
  if (!(caution > 0)) caution = 0;
  return 1.5 * caution - 0.5;
}

/// Returns how far the least cosine has gone from kLeastCosine to 1: by what the bound has cut for
/// some steps, and with `gradual` in a layer's first steps. `lengths`: with this step in them.
[[nodiscard]] DKFAC_HD inline double turn_to_gradient(StepLength rule, const double* lengths) {
  const double cut = lengths[kTaken];
  if (rule != StepLength::gradual) return cut;
  const double first = 1 - lengths[kSteps] / kGradualSteps, agreed = kCaution * lengths[kAlong];
  const double early = first * (agreed < 1 ? agreed : 1);
  return first > 0 && early > cut ? early : cut;
}

/// Returns the step of a layer by its rule (docs/math.md, "Step length"), before the bound of
/// growth: the gradient itself where the direction has no usable length.
[[nodiscard]] DKFAC_HD inline LengthFactors length_factors(StepLength rule, LengthProducts p,
                                                           double least_cosine = kLeastCosine,
                                                           double exponent = -0.5) {
  const double v = std::sqrt(p.vv), u = std::sqrt(p.uu), cosine = p.uv / (v * u);
  const bool usable = p.vv > 0 && p.uu > 0 && cosine > 0;  // Not where a product is a NaN.
  if (!usable || !(v / u > 0) || !(v / u - v / u == 0)) return {.direction = 0, .gradient = 1};
  if (rule == StepLength::projection) return {.direction = cosine * v / u, .gradient = 0};
  if (cosine >= least_cosine)
    return {.direction = v / u * std::pow(cosine, exponent), .gradient = 0};
  // The parts of the step across V and along V are those of the least cosine.
  const double length = std::pow(least_cosine, exponent);
  const double turn = std::sqrt((1 - least_cosine * least_cosine) / (1 - cosine * cosine));
  return {.direction = length * turn * v / u, .gradient = length * (least_cosine - turn * cosine)};
}

/// Returns by what to multiply a gradient of this length, at most 1, and enters the result into the
/// layer's lengths[kLengths], zeros before its first step. A length of 0 or not finite is not
/// entered.
[[nodiscard]] DKFAC_HD inline double bound_length(double length, double* lengths) {
  if (!(length > 0) || !(length - length == 0)) return 1;
  const double bound = kLengthBound * lengths[kMeanLength];
  const double factor = lengths[kSteps] > 0 && length > bound ? bound / length : 1;
  lengths[kSteps] += 1;
  const double along = lengths[kAlong] > 0 ? lengths[kAlong] : 0;
  const double least = kLengthWeight + kAgreement * along, mean_weight = 1 / lengths[kSteps];
  const double weight = mean_weight > least ? mean_weight : least;
  lengths[kMeanLength] += weight * (factor * length - lengths[kMeanLength]);
  lengths[kTaken] += kTakenWeight * (1 - factor - lengths[kTaken]);
  return factor;
}

/// Enters the cosine of the gradient V and the step W before it into the layer's lengths, unless
/// one of them is 0 or not finite. p[3]: vv, vw, ww.
DKFAC_HD inline void enter_cosine(const double* p, double* lengths) {
  const double cosine = p[1] / (std::sqrt(p[0]) * std::sqrt(p[2]));
  if (cosine - cosine == 0) lengths[kAlong] += kTakenWeight * (cosine - lengths[kAlong]);
}

/// Stores length_factors() times bound_length() in factors[2]. p[2,3]: vv, uu, uv of weight and
/// bias; before[3]: as of enter_cosine().
DKFAC_HD inline void store_length_factors(StepLength rule, const double* p, const double* before,
                                          double* lengths, double* factors) {
  const LengthProducts sums{.vv = p[0] + p[3], .uu = p[1] + p[4], .uv = p[2] + p[5]};
  const double bound = bound_length(std::sqrt(sums.vv), lengths);
  enter_cosine(before, lengths);
  const double least_cosine = kLeastCosine + (1 - kLeastCosine) * turn_to_gradient(rule, lengths);
  const LengthFactors step =
      length_factors(rule, sums, least_cosine, length_exponent(lengths[kSteps], lengths[kAlong]));
  factors[0] = bound * step.direction;
  factors[1] = bound * step.gradient;
}

}  // namespace dkfac::kfac
