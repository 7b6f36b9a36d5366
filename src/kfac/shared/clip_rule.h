#pragma once

#include <cmath>

#include "core/shared/cuda/device_code.h"

/// The arithmetic of the KL clip, shared by host and devices.
namespace dkfac::kfac {

/// Returns the factor of the KL clip (docs/math.md, "KL clip"),
///   nu = min(1, sqrt(kappa / (lr^2 sum))),
/// with sum = s^2 <U, V> over all preconditioned gradients U and their gradients V, whose rates are
/// s lr. 1 where lr^2 sum <= 0: nothing is updated, or the direction has no length in this metric.
/// 0 where it is not finite: such a direction must not be applied.
[[nodiscard]] DKFAC_HD inline double kl_factor(double kappa, double lr, double sum) {
  const double length = lr * lr * sum;
  if (!(length - length == 0)) return 0;
  if (!(length > 0)) return 1;
  const double factor = std::sqrt(kappa / length);
  return factor < 1 ? factor : 1;
}

/// Returns u * factor; 0 where the factor is 0, even if u is not finite.
template <class T>
DKFAC_HD T clipped(T u, T factor) {
  return factor == 0 ? T{0} : factor * u;
}

}  // namespace dkfac::kfac
