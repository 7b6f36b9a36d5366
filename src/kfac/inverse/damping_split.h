#pragma once

#include <cmath>
#include <cstdint>

#include "dkfac/kfac/options.h"

#include "core/shared/cuda/device_code.h"

/// lambda of a layer and its split between two factors, shared by host and device code.
namespace dkfac::kfac {

/// A relative damping below this is none: in f32 its reciprocal would leave no room for products.
inline constexpr double kLeastRelativeDamping = 1e-20;

/// lambda of a layer with CurvatureOptions::relative_damping `fraction` of `mean`. 1 where the
/// layer has no curvature that could give one: (0 + 1 I)^-1 V is V.
DKFAC_HD inline double relative_lambda(double fraction, double mean) {
  const double lambda = fraction * mean;
  return lambda >= kLeastRelativeDamping ? lambda : 1;  // Also for a NaN.
}

/// layer_damping() of dkfac/kfac/inverse.h.
DKFAC_HD inline double layer_lambda(double damping, double fraction, double trace_a,
                                    std::int64_t dim_a, double trace_g, std::int64_t dim_g) {
  if (damping > 0) return damping;
  return relative_lambda(
      fraction, trace_a / static_cast<double>(dim_a) * (trace_g / static_cast<double>(dim_g)));
}

/// The shifts; both are sqrt(lambda) where a factor is zero. `zero_a` and `zero_g`: the inverse is
/// that of the shift alone.
struct FactorShifts {
  double a, g;
  bool zero_a, zero_g;
};

/// Returns pi: A gets pi*sqrt(lambda), G gets sqrt(lambda)/pi. Where pi is undefined the result is
/// not finite or not positive.
DKFAC_HD inline double damping_pi(DampingSplit rule, double trace_a, std::int64_t dim_a,
                                  double trace_g, std::int64_t dim_g) {
  if (rule == DampingSplit::constant) return 1;
  if (rule == DampingSplit::equal_traces) return std::sqrt(trace_a) / std::sqrt(trace_g);
  return std::sqrt(trace_a / static_cast<double>(dim_a)) /
         std::sqrt(trace_g / static_cast<double>(dim_g));
}

/// The shifts of split_damping(). Beside a zero factor the other's inverse is that of the shift
/// too, unless each is rebuilt in steps of its own (`alone`): it would outlast the zero.
DKFAC_HD inline FactorShifts split_shifts(const Damping& damping, double trace_a,
                                          std::int64_t dim_a, double trace_g, std::int64_t dim_g,
                                          bool alone = false) {
  const double root = std::sqrt(damping.lambda);
  if (trace_a <= 0 || trace_g <= 0)
    return {root, root, !alone || trace_a <= 0, !alone || trace_g <= 0};
  const double pi = damping_pi(damping.split, trace_a, dim_a, trace_g, dim_g);
  // Also false for NaN, and for infinity.
  if (!(pi > 0 && pi - pi == 0)) return {root, root, false, false};
  return {pi * root, root / pi, false, false};
}

/// Writes the width of a factor times the mean of its eigenvalues weighted by themselves, 0 of a
/// zero one, over the trace of each group.
struct WeighTraces {
  const double* squares;  ///< Traces of the factor's square.
  std::int64_t dim;
  double* traces;
  DKFAC_HD void operator()(std::int64_t group) const {
    if (traces[group] > 0)
      traces[group] = static_cast<double>(dim) * squares[group] / traces[group];
  }
};

/// Writes split_damping() of each group to Factor::requested_damping of both factors.
struct RequestDamping {
  Damping damping;  ///< lambda may be 0, as CurvatureOptions::damping.
  const double *trace_a, *trace_g;
  std::int64_t dim_a, dim_g;
  double *a, *g;
  bool alone = false;   ///< As in split_shifts().
  double relative = 0;  ///< CurvatureOptions::relative_damping
  DKFAC_HD void operator()(std::int64_t group) const {
    const Damping own(
        layer_lambda(damping.lambda, relative, trace_a[group], dim_a, trace_g[group], dim_g),
        damping.split);
    const FactorShifts shifts =
        split_shifts(own, trace_a[group], dim_a, trace_g[group], dim_g, alone);
    a[group] = shifts.zero_a ? -shifts.a : shifts.a;
    g[group] = shifts.zero_g ? -shifts.g : shifts.g;
  }
};

/// Writes the relative damping of a single matrix, NormFisher::full.
struct RequestRelative {
  double relative;
  const double* trace;
  std::int64_t dim;
  double* out;
  DKFAC_HD void operator()(std::int64_t) const {
    *out = relative_lambda(relative, *trace / static_cast<double>(dim));
  }
};

}  // namespace dkfac::kfac
