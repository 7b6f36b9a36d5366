#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "app/shared/result.h"

namespace dkfac::app {

/// Mean and spread over seeds, of the values that are finite.
struct Spread {
  double mean = 0, min = 0, max = 0, stddev = 0;  ///< stddev: sample, 0 for one value.
  std::int64_t count = 0;
  /// Of the 95 % confidence interval of the mean, by Student's t; unset for fewer than two values.
  std::optional<double> half_width = {};
};
[[nodiscard]] Spread spread_of(std::span<const double> values);

/// A group minus the baseline, over the seeds that both ran without failure. Runs of one seed share
/// initial weights and data order, so their difference varies less than they do.
struct PairedDifference {
  Spread final_accuracy;   ///< Of accuracies in [0, 1].
  Spread epochs, seconds;  ///< To target, over the seeds with which both reached it.
};

/// One line of the comparison.
struct GroupSummary {
  std::string name;
  std::int64_t runs = 0, failed = 0;
  std::int64_t reached = 0;               ///< Runs that reached the target and did not fail.
  std::optional<Spread> epochs, seconds;  ///< To target, over the runs that reached it.
  Spread final_accuracy, best_accuracy;   ///< In [0, 1], over the runs that did not fail.
  Spread median_accuracy;                 ///< Of the last five epochs of a run; likewise.
  Spread seconds_per_step;                ///< Likewise.
  double step_ratio = 0;                  ///< Mean step over the cheapest group's; 0 when unknown.
  std::optional<PairedDifference> difference;  ///< Unset for the baseline.
};
/// Winners are names of groups: several for a tie, none when nobody qualifies. A group whose runs
/// reach the target (do not fail) more often stands before one that is better on average.
struct Comparison {
  std::optional<double> target;  ///< Test accuracy in [0, 1].
  std::vector<GroupSummary> groups;
  std::vector<std::string> fewest_epochs, fewest_seconds, highest_final, highest_best,
      cheapest_step;
  std::string caption;   ///< Model, data, batch, ranks: what the runs have in common.
  std::string baseline;  ///< The first group.
};
/// Epochs and seconds to target are read off the epochs of each run: the first one whose test
/// accuracy is at least the target. A run without epochs is believed. Without a target it is that
/// of the runs, when they all have the same.
[[nodiscard]] Comparison summarize(std::span<const RunGroup> groups, std::optional<double> target);

/// Who wins in epochs, in seconds, in accuracy and in cost per step, and by how much; which runs
/// missed the target or failed. One sentence per line.
[[nodiscard]] std::string verdict(const Comparison& comparison);
/// Plain text for a terminal, aligned, with the winners in words.
[[nodiscard]] std::string text_table(const Comparison& comparison);
[[nodiscard]] std::string markdown_table(const Comparison& comparison);
/// Self-contained HTML page: the table and curves as inline SVG (loss and accuracy against epochs
/// and against seconds, every group in one picture, mean line and min-max band over seeds), the
/// phases of a step as bars, the configuration. No scripts, no network.
[[nodiscard]] std::string html_report(std::span<const RunGroup> groups,
                                      const Comparison& comparison, const std::string& title);
/// The picture alone (accuracy against epochs and against seconds), e.g. for a README.
[[nodiscard]] std::string svg_curves(std::span<const RunGroup> groups,
                                     const Comparison& comparison);

/// Indented JSON; NaN and infinity are written as null, and so is what is unset.
[[nodiscard]] std::string to_json(const RunResult& result);
[[nodiscard]] std::string to_json(const Comparison& comparison);

}  // namespace dkfac::app
