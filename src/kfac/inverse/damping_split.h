#pragma once

#include <cmath>
#include <cstdint>

#include "dkfac/kfac/options.h"

#include "core/shared/cuda/device_code.h"

/// The split of lambda between two factors, shared by host and device code.
namespace dkfac::kfac {

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

/// Writes split_damping() of each group to Factor::requested_damping of both factors.
struct RequestDamping {
  Damping damping;
  const double *trace_a, *trace_g;
  std::int64_t dim_a, dim_g;
  double *a, *g;
  bool alone = false;  ///< As in split_shifts().
  DKFAC_HD void operator()(std::int64_t group) const {
    const FactorShifts shifts =
        split_shifts(damping, trace_a[group], dim_a, trace_g[group], dim_g, alone);
    a[group] = shifts.zero_a ? -shifts.a : shifts.a;
    g[group] = shifts.zero_g ? -shifts.g : shifts.g;
  }
};

}  // namespace dkfac::kfac
