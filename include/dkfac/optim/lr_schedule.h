#pragma once

#include <utility>
#include <vector>

#include "dkfac/core/export.h"

namespace dkfac::optim {

/// SP-NGD eq. 21, which has `last` = 0: lr0 until `start`, then
/// last + (lr0 - last) (1 - (e - start)/(end - start))^power, `last` from `end` on. Epochs are
/// fractional. Requires end > start >= 0, power > 0.
struct DKFAC_API PolynomialLr {
  double lr0 = 0;
  double start = 0, end = 1;
  double power = 1;
  double last = 0;
  [[nodiscard]] double at(double epoch) const;
  void validate() const;
};

/// Straight lines between (epoch, lr) knots, constant outside them; knots ascend in epoch.
struct DKFAC_API PiecewiseLinearLr {
  std::vector<std::pair<double, double>> knots;
  [[nodiscard]] double at(double epoch) const;
  void validate() const;
};

/// Half a cosine from lr0 at `start` to `last` at `end`: last + (lr0 - last) (1 + cos(pi t))/2 with
/// t = (e - start)/(end - start), constant outside (Loshchilov and Hutter 2017, eq. 5, without
/// restarts). Requires end > start >= 0.
struct DKFAC_API CosineLr {
  double lr0 = 0, last = 0;
  double start = 0, end = 1;
  [[nodiscard]] double at(double epoch) const;
  void validate() const;
};

/// The value of the last (epoch, lr) knot that is not after the epoch, and of the first one before
/// it: steps, as Goyal et al. 2017 have it. Knots ascend in epoch.
struct DKFAC_API StepLr {
  std::vector<std::pair<double, double>> knots;
  [[nodiscard]] double at(double epoch) const;
  void validate() const;
};

/// Factor of a gradual warm-up: rises linearly from `first` at epoch 0 to 1 at `epochs` (Goyal et
/// al. 2017, section 2.2). 1 when epochs is 0.
[[nodiscard]] DKFAC_API double warmup_factor(double epoch, double epochs, double first = 0);

}  // namespace dkfac::optim
