#pragma once

#include <set>
#include <string>

#include "app/report/table.h"
#include "app/sweep/state.h"

namespace dkfac::app {

/// Makes a table of all runs, best first: settings that differ, epochs, score, accuracy, seconds,
/// status.
[[nodiscard]] Table table_of(const SweepState& state);
/// Returns the keys that the points of the sweep set.
[[nodiscard]] std::set<std::string> keys_of(const SweepState& state);
/// Formats a score: "87.20 %", "0.412", "-".
[[nodiscard]] std::string score_text(double score, Metric metric);
/// Describes a run in one line.
[[nodiscard]] std::string line_of(const SweepState& state, const SweepRun& run);
/// Summarizes the sweep in words: the best run with its settings, the number of failed runs and
/// their errors.
[[nodiscard]] std::string summary_of(const SweepState& state);
/// Lists the runs that would start, and their epochs.
[[nodiscard]] std::string plan_text(const SweepState& state);

}  // namespace dkfac::app
