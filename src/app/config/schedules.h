#pragma once

#include "app/shared/config.h"

namespace dkfac::app {

/// Returns the peak of the learning rate schedule over all phases: lr0 of the paper's momentum
/// rule.
[[nodiscard]] double full_rate(const Config& config);
/// Returns the lowest damping of the schedule, which is the hardest one on the computing type.
[[nodiscard]] double lowest_damping(const Config& config);
/// Throws InvalidArgument for schedules that lack their knots or end before they start.
void check_schedules(const Config& config);

}  // namespace dkfac::app
