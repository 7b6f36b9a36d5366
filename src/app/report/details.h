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

/// Loading of photographs over all epochs of a group's runs.
struct LoadingSummary {
  double wait_fraction = 0;  ///< Of the training time, spent waiting for batches.
  /// Images per second of one thread, in all and in each stage alone; unset where it took no time.
  std::optional<double> all, read, decode, resize, normalise;
  double bad = 0;  ///< Damaged photographs, summed over runs.
};
/// Unset without photographs.
[[nodiscard]] std::optional<LoadingSummary> loading_of(const RunGroup& group);

/// The runs of a group under the adaptive rule.
struct StalenessSummary {
  Spread a_kept, g_kept, bytes_saved, flops_saved;  ///< Of CurvatureResult.
  const RunResult* first = nullptr;  ///< The run whose intervals are drawn; lives in the group.
};
/// Unset where no run is under the adaptive rule.
[[nodiscard]] std::optional<StalenessSummary> staleness_of(const RunGroup& group);

}  // namespace dkfac::app
