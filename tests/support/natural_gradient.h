#pragma once

#include <algorithm>

#include "dkfac/kfac/options.h"

namespace dkfac::testing {

/// Options of K-FAC whose directions are (F + lambda I)^-1 V itself, with a lambda and of whole
/// factors, and whose refreshes follow the intervals from the first step on, each step unless they
/// are given, as the theory has them.
inline kfac::CurvatureOptions natural_gradient(kfac::CurvatureOptions options = {}) {
  if (options.damping == 0) options.damping = 1e-3;
  options.step_length = kfac::StepLength::none;
  options.refresh.early_refreshes = false;
  for (int* interval : {&options.refresh.statistics_interval, &options.refresh.inverse_interval})
    *interval = std::max(*interval, 1);
  options.inverse.block_width = -1;
  return options;
}

}  // namespace dkfac::testing
