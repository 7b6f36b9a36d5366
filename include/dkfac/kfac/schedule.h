#pragma once

#include <span>
#include <utility>
#include <vector>

namespace dkfac::kfac {

/// SP-NGD eq. 21: lr0 until `start`, then lr0 * (1 - (e - start)/(end - start))^power, 0 from `end`
/// on. Epochs are fractional. Requires end > start >= 0, power > 0.
struct PolynomialLr {
  double lr0 = 0;
  double start = 0, end = 1;
  double power = 1;
  [[nodiscard]] double at(double epoch) const;
  void validate() const;
};

/// Straight lines between (epoch, lr) knots, constant outside them; knots ascend in epoch.
struct PiecewiseLinearLr {
  std::vector<std::pair<double, double>> knots;
  [[nodiscard]] double at(double epoch) const;
  void validate() const;
};

/// Factor of a gradual warm-up: rises linearly from `first` at epoch 0 to 1 at `epochs` (Goyal et
/// al. 2017, section 2.2). 1 when epochs is 0.
[[nodiscard]] double warmup_factor(double epoch, double epochs, double first = 0);

}  // namespace dkfac::kfac
