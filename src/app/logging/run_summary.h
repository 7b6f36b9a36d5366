#pragma once

#include <vector>

#include "app/shared/result.h"

namespace dkfac::app {

[[nodiscard]] double median(std::vector<double> values);  ///< 0 without values.

/// Returns the median test accuracy of the last five evaluated epochs (Goyal et al. 2017); NaN
/// without labels.
[[nodiscard]] double median_of_last(const std::vector<EpochMetrics>& epochs);

/// Appends an epoch and updates the derived results: best, final and median accuracy, best and
/// final loss, epochs, steps and seconds to the target, median rate and time per step.
void add_epoch(RunResult& result, const EpochMetrics& metrics);
/// Replaces all epochs and derives the results from them anew.
void replace_epochs(RunResult& result, const std::vector<EpochMetrics>& epochs);
/// Returns whether the run has test results.
[[nodiscard]] bool any_evaluated(const RunResult& result);
/// Returns whether these include accuracies; a network without labels has losses alone.
[[nodiscard]] bool has_accuracy(const RunResult& result);

}  // namespace dkfac::app
