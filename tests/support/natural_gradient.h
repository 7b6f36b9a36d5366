#pragma once

#include "dkfac/kfac/options.h"

namespace dkfac::testing {

/// Options of K-FAC whose directions are (F + lambda I)^-1 V itself, with a lambda, and whose
/// refreshes follow the intervals from the first step on, as the theory has them.
inline kfac::CurvatureOptions natural_gradient(kfac::CurvatureOptions options = {}) {
  if (options.damping == 0) options.damping = 1e-3;
  options.step_length = kfac::StepLength::none;
  options.refresh.early_refreshes = false;
  return options;
}

}  // namespace dkfac::testing
