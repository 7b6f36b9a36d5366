#pragma once

#include <cstdint>

#include "dkfac/core/export.h"

namespace dkfac::kfac {

/// Damping that decays (or grows) from `initial` to `target`: lambda <- (1 - a) lambda + a target
/// per step, with a = 2 |log10(initial/target)|/steps, at most 1. It is `target` from `steps` on,
/// and when steps is 0. From Osawa et al. 2019, as implemented in LBANN.
struct DKFAC_API DampingWarmup {
  double initial = 0, target = 0;  ///< > 0
  std::int64_t steps = 0;
  [[nodiscard]] double at(std::int64_t step) const;
  void validate() const;
};

/// Interval that is interpolated linearly from `first` at step 0 to `last` at `steps` and rounded;
/// constant afterwards; `last` when steps is 0.
struct DKFAC_API IntervalRamp {
  int first = 1, last = 1;  ///< >= 1
  std::int64_t steps = 0;
  [[nodiscard]] int at(std::int64_t step) const;
  void validate() const;
};

}  // namespace dkfac::kfac
