#pragma once

#include <map>
#include <optional>
#include <string>

#include "app/shared/report.h"

/// What the report tells of a group besides its places in the comparison.
namespace dkfac::app {

/// Returns the mean seconds of one step by activity, in training only, over the runs that made
/// steps. An activity that a run lacks took no time in it.
[[nodiscard]] std::map<std::string, double> step_seconds(const RunGroup& group);

/// Returns the loading of photographs over all epochs of a group's runs: the mean of the fraction,
/// and sums, for the damaged ones over runs. Unset without photographs.
[[nodiscard]] std::optional<LoadingMetrics> loading_of(const RunGroup& group);

/// The runs of a group under the adaptive rule.
struct StalenessSummary {
  Spread a_kept, g_kept, bytes_saved, flops_saved;  ///< Of CurvatureResult.
  const RunResult* first = nullptr;  ///< The run whose intervals are drawn; lives in the group.
};
/// Unset where no run is under the adaptive rule.
[[nodiscard]] std::optional<StalenessSummary> staleness_of(const RunGroup& group);

}  // namespace dkfac::app
