#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "app/shared/report.h"

/// What the report tells of groups besides their places in the comparison.
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

/// A run of any group.
struct NamedRun {
  std::string group;
  const RunResult* run;
  const RunResult* operator->() const { return run; }
};
[[nodiscard]] std::vector<NamedRun> runs_of(std::span<const RunGroup> groups);

/// What is drawn over epochs.
enum class Measure : std::uint8_t { test_accuracy, train_loss, test_loss, test_top5, train_top5 };
[[nodiscard]] const char* name_of(Measure measure);

/// One epoch of a group: mean and range over the seeds that have a finite value there.
struct Point {
  std::int64_t epoch = 0;
  double steps = 0;    ///< Mean of these seeds' optimizer steps at its end.
  double seconds = 0;  ///< Mean of their training seconds at its end.
  double mean = 0, low = 0, high = 0;
  std::int64_t runs = 0;
};
/// Consecutive points; an epoch where no seed has a finite value ends a segment, and one that was
/// not evaluated does not.
using Segment = std::vector<Point>;

[[nodiscard]] std::vector<Segment> curve_of(const RunGroup& group, Measure measure);

}  // namespace dkfac::app
