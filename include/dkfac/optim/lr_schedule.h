#pragma once

#include <utility>
#include <vector>

#include "dkfac/core/export.h"

namespace dkfac::optim {

// The rate at an epoch that is not a number is not a number: optimizers refuse it.

/// Polynomial decay, SP-NGD eq. 21 (where `last` = 0): lr0 until `start`, then
///   last + (lr0 - last) (1 - (e - start)/(end - start))^power,
/// and `last` from `end` on. Epochs e are fractional. Requires end > start >= 0, power > 0.
struct DKFAC_API PolynomialLr {
  double lr0 = 0;
  double start = 0, end = 1;
  double power = 1;
  double last = 0;
  [[nodiscard]] double at(double epoch) const;
  void validate() const;
};

/// Linear interpolation between (epoch, lr) knots, constant outside them; knots ascend in epoch.
struct DKFAC_API PiecewiseLinearLr {
  std::vector<std::pair<double, double>> knots;
  [[nodiscard]] double at(double epoch) const;
  void validate() const;
};

/// Cosine decay from lr0 at `start` to `last` at `end`, constant outside (Loshchilov and Hutter
/// 2017, eq. 5, without restarts):
///   last + (lr0 - last) (1 + cos(pi t))/2 with t = (e - start)/(end - start).
/// Requires end > start >= 0.
struct DKFAC_API CosineLr {
  double lr0 = 0, last = 0;
  double start = 0, end = 1;
  [[nodiscard]] double at(double epoch) const;
  void validate() const;
};

/// Step decay (Goyal et al. 2017): the lr of the last (epoch, lr) knot at or before the epoch;
/// before the first knot, its lr. Knots ascend in epoch.
struct DKFAC_API StepLr {
  std::vector<std::pair<double, double>> knots;
  [[nodiscard]] double at(double epoch) const;
  void validate() const;
};

/// Factor of a gradual warm-up: rises linearly from `first` at epoch 0 to 1 at `epochs` (Goyal et
/// al. 2017, section 2.2). 1 when epochs is 0. Throws InvalidArgument unless epochs >= 0 and
/// `first` are finite.
[[nodiscard]] DKFAC_API double warmup_factor(double epoch, double epochs, double first = 0);

}  // namespace dkfac::optim
