#pragma once

#include <cmath>

#include "core/shared/cuda/device_code.h"

/// The arithmetic of the KL clip: the same functions on every device.
namespace dkfac::kfac {

/// nu = min(1, sqrt(kappa / (lr^2 sum))), sum = <U, V> over all preconditioned gradients U and
/// their gradients V (docs/math.md, "KL clip"). 1 where lr^2 sum <= 0: nothing moves, or the
/// direction has no length in this metric. 0 where it is not finite: such a direction must not be
/// applied.
[[nodiscard]] DKFAC_HD inline double kl_factor(double kappa, double lr, double sum) {
  const double length = lr * lr * sum;
  if (!(length - length == 0)) return 0;
  if (!(length > 0)) return 1;
  const double factor = std::sqrt(kappa / length);
  return factor < 1 ? factor : 1;
}

/// u * factor; 0 also where u is not finite.
template <class T>
DKFAC_HD T clipped(T u, T factor) {
  return factor == 0 ? T{0} : factor * u;
}

}  // namespace dkfac::kfac
