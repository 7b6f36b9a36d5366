#pragma once

#include <vector>

#include "app/shared/result.h"

namespace dkfac::app {

[[nodiscard]] double median(std::vector<double> values);  ///< 0 without values.

/// Median test accuracy of the last five epochs, as Goyal et al. 2017 report it.
[[nodiscard]] double median_of_last(const std::vector<EpochRecord>& epochs);

/// Appends an epoch and brings everything that follows from the epochs up to date: best, final and
/// median accuracy, when the target was reached, median rate and step.
void add_epoch(RunResult& result, const EpochRecord& record);

}  // namespace dkfac::app
