#pragma once

#include <cstdint>

namespace dkfac::nn {

/// Targets of a label smoothed by a: (1-a) [k = label] + a/classes.
struct SmoothedTargets {
  double hit, elsewhere;
};
[[nodiscard]] inline SmoothedTargets smoothed_targets(double smoothing, std::int64_t classes) {
  const double elsewhere = smoothing / static_cast<double>(classes);
  return {1.0 - smoothing + elsewhere, elsewhere};
}

/// Tolerance of the sum of a distribution around 1: 16-bit types round each entry.
inline constexpr double kDistributionTolerance = 1e-3;

}  // namespace dkfac::nn
