#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "app/shared/result.h"

namespace dkfac::app {

/// Mean and spread of the finite values over seeds.
struct Spread {
  double mean = 0, min = 0, max = 0, stddev = 0;  ///< stddev: sample, 0 for one value.
  std::int64_t count = 0;
  /// Half-width of the 95 % confidence interval of the mean (Student's t); unset for fewer than two
  /// values.
  std::optional<double> half_width = {};
};
[[nodiscard]] Spread spread_of(std::span<const double> values);

/// Measures in which groups are compared.
enum class Respect : std::uint8_t {
  epochs,  ///< This and the next: to the target, of the runs that reached it.
  seconds,
  final_accuracy,  ///< This and the next: in [0, 1].
  best_accuracy,
  step,        ///< Seconds of a step.
  final_loss,  ///< This and the next: where no run has an accuracy, in place of those.
  best_loss
};
inline constexpr std::size_t kRespects = 7;
[[nodiscard]] constexpr bool is_accuracy(Respect respect) {
  return respect == Respect::final_accuracy || respect == Respect::best_accuracy;
}

/// A spread in each respect, without values where there are none.
struct Spreads {
  std::array<Spread, kRespects> all{};
  Spread& operator[](Respect respect) { return all[static_cast<std::size_t>(respect)]; }
  const Spread& operator[](Respect respect) const { return all[static_cast<std::size_t>(respect)]; }
};

/// Summary of one group: a row of the comparison.
struct GroupSummary {
  std::string name;
  std::int64_t runs = 0, failed = 0;
  std::int64_t reached = 0;      ///< Runs that reached the target and did not fail.
  Spreads values;                ///< Over the runs that did not fail.
  Spread median_accuracy;        ///< Over the last five epochs of each such run.
  std::optional<double> chance;  ///< RunResult::chance, if it is that of all runs.
  double step_ratio = 0;         ///< Mean step over the cheapest group's; 0 when unknown.
  /// Paired differences to the baseline, over the seeds with which both have a value; unset for the
  /// baseline. Runs of one seed share initial weights and data order, which reduces the variance of
  /// their difference.
  std::optional<Spreads> difference;
};

/// A group's place in one respect.
struct Place {
  std::size_t group = 0;   ///< Index into Comparison::groups.
  Spread difference = {};  ///< To the first place, by seed; none at the first place itself.
  bool worse = false;      ///< Shown to be worse than the first place.
};
/// Order of the groups that have values in a respect, best mean first; but a group whose runs reach
/// the target (or finish) more often comes before one with a better mean. The order alone shows
/// nothing: a group is shown to be worse than the first where the 95 % confidence interval of their
/// paired difference excludes 0, for which both need two seeds in common.
struct Standing {
  Respect respect = Respect::epochs;
  std::vector<Place> places;
  /// Returns the groups that are not shown to be worse than the first; none where no group is.
  [[nodiscard]] std::vector<std::size_t> best() const;
};

/// Comparison of groups.
struct Comparison {
  Targets target;
  std::vector<GroupSummary> groups;
  std::vector<Standing> standings;  ///< One for each respect, with that of a step last.
  std::string caption;              ///< Common settings of the runs: model, data, batch, ranks.
  std::string baseline;             ///< The first group.
  /// Returns whether any run has an accuracy; else the comparison is of losses.
  [[nodiscard]] bool has_accuracy() const {
    return groups.empty() || std::ranges::any_of(groups, [](const GroupSummary& group) {
             return group.values[Respect::final_accuracy].count > 0 ||
                    group.values[Respect::final_loss].count == 0;
           });
  }
};
/// Summarizes groups of runs. Epochs and seconds to target are those of the first epoch of a run
/// that reaches all targets; a run without epochs keeps its stored values.
/// Without `target`, the targets of the runs are used if they all have the same.
[[nodiscard]] Comparison summarize(std::span<const RunGroup> groups, const Targets& target);

/// Describes in words, one sentence per line, the groups that are shown to be best in epochs,
/// seconds, accuracy and cost per step with their margins, or that no difference is shown; and the
/// runs that missed the target or failed.
[[nodiscard]] std::string verdict(const Comparison& comparison);
/// Formats an aligned plain-text table for a terminal, followed by the verdict.
[[nodiscard]] std::string text_table(const Comparison& comparison);
[[nodiscard]] std::string markdown_table(const Comparison& comparison);

/// File of to_json() of a comparison in its folder, or of a run alone in the folder of the run.
inline constexpr const char* kComparisonFile = "comparison.json";

/// Formats indented JSON; NaN, infinity and unset values become null.
[[nodiscard]] std::string to_json(const RunResult& result);
/// Of a comparison of these groups, for comparison.json: the summary with its tables and sentences,
/// and what a page needs besides: the curves (mean and range over seeds), the activities of a step,
/// the configurations and every run. `python -m dkfac.report` draws it and computes no statistic.
[[nodiscard]] std::string to_json(std::span<const RunGroup> groups, const Comparison& comparison,
                                  const std::string& title);

}  // namespace dkfac::app
