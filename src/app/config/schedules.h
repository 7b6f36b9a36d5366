#pragma once

#include "app/shared/config.h"

namespace dkfac::app {

/// The height of the learning rate's schedule, of all phases' if there are some: lr0 of the paper's
/// momentum rule.
[[nodiscard]] double full_rate(const Config& config);
/// Throws InvalidArgument for schedules that lack their knots or end before they start.
void check_schedules(const Config& config);

}  // namespace dkfac::app
