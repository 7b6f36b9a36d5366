#pragma once

#include <cmath>
#include <cstdint>

#include "dkfac/kfac/options.h"

#include "core/shared/cuda/device_code.h"

/// The split of lambda between two factors, shared by host and device code.
namespace dkfac::kfac {

/// The shifts; both are sqrt(lambda), with `zero` set, where a factor is zero.
struct FactorShifts {
  double a, g;
  bool zero;
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

/// The shifts of split_damping().
DKFAC_HD inline FactorShifts split_shifts(const Damping& damping, double trace_a,
                                          std::int64_t dim_a, double trace_g, std::int64_t dim_g) {
  const double root = std::sqrt(damping.lambda);
  if (trace_a <= 0 || trace_g <= 0) return {root, root, true};
  const double pi = damping_pi(damping.split, trace_a, dim_a, trace_g, dim_g);
  // Also false for NaN, and for infinity.
  if (!(pi > 0 && pi - pi == 0)) return {root, root, false};
  return {pi * root, root / pi, false};
}

}  // namespace dkfac::kfac
