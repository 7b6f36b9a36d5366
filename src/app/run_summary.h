#pragma once

#include <vector>

#include "dkfac/app/result.h"

namespace dkfac::app {

[[nodiscard]] double median(std::vector<double> values);  ///< 0 without values.

/// Appends an epoch and brings everything that follows from the epochs up to date: best and final
/// accuracy, when the target was reached, median rate and step.
void add_epoch(RunResult& result, const EpochRecord& record);

}  // namespace dkfac::app
