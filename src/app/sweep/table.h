#pragma once

#include <set>
#include <string>

#include "app/report/plot.h"
#include "app/report/table.h"
#include "app/sweep/state.h"

namespace dkfac::app {

/// All runs, best first: settings that differ, epochs, score, accuracy, seconds, what became of
/// them.
[[nodiscard]] Table table_of(const SweepState& state);
/// The settings that runs were tried with.
[[nodiscard]] std::set<std::string> keys_of(const SweepState& state);
/// How a picture shows it: as an accuracy or as a loss.
[[nodiscard]] Measure measure_of(Metric metric);
/// A score as it is shown: "87.20 %", "0.412", "-".
[[nodiscard]] std::string score_text(double score, Metric metric);
/// A run in one line.
[[nodiscard]] std::string line_of(const SweepState& state, const SweepRun& run);
/// What the sweep says in words: the best run with its settings, how many failed and why.
[[nodiscard]] std::string summary_of(const SweepState& state);
/// The runs that would start, and how many epochs they take.
[[nodiscard]] std::string plan_text(const SweepState& state);
/// A picture: accuracy by epoch of every run, and the score against each number that was tried.
[[nodiscard]] std::string picture_of(const SweepState& state);

}  // namespace dkfac::app
