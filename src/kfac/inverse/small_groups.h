#pragma once

#include "dkfac/core/tensor_view.h"

#include "kfac/inverse/factor_plan.h"
#include "kfac/inverse/robust_inverse.h"

/// Convolutions of many narrow groups (depthwise: A is 9 wide, G 1): plain loops, since library
/// calls would cost more than the computation.
namespace dkfac::kfac {

/// Maximum width of such a group.
inline constexpr std::int64_t kSmallGroup = 32;
[[nodiscard]] inline bool has_small_groups(const FactorPlan& plan) {
  return plan.groups > 1 && plan.dim <= kSmallGroup && plan.is_explicit();
}

/// The first stage of rebuild_inverse(), in f64 for any dtype: `damped`, or `kept` (nothing is
/// written), after which the fallback stages apply. `kept` where M + shift*I is not positive
/// definite, it or its inverse is not finite, or the shift is below d eps tr M / kResidualBar with
/// the eps of f64. Above that bound the result is correct to kResidualBar without a check.
[[nodiscard]] InverseResult invert_small(const FactorGroup& block, double shift);

/// Preconditions weight[groups*out,width] and bias[groups*out,1] (or empty) of all groups in place:
/// V <- G^-1 V A^-1 with inverses a[groups,d,d] and g[groups,out,out]; d, out <= kSmallGroup.
void apply_small(ConstTensorView a, ConstTensorView g, TensorView weight, TensorView bias);

}  // namespace dkfac::kfac
