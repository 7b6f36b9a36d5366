#include <algorithm>
#include <cmath>
#include <functional>
#include <set>

#include <fmt/core.h>

#include "app/record/run_summary.h"
#include "app/report/format.h"
#include "app/report/ranking.h"
#include "app/report/statistics.h"
#include "app/shared/report.h"

namespace dkfac::app {
namespace {

struct ToTarget {
  double epochs = 0, seconds = 0;
};

std::optional<ToTarget> to_target(const RunResult& run, double target) {
  for (const EpochRecord& record : run.epochs) {
    if (record.test_accuracy >= target) {
      return ToTarget{static_cast<double>(record.epoch), record.train_seconds};
    }
  }
  if (!run.epochs.empty() || !run.epochs_to_target || !run.seconds_to_target) return std::nullopt;
  return ToTarget{*run.epochs_to_target, *run.seconds_to_target};
}

/// The target that all runs were given, if it is one.
std::optional<double> common_target(std::span<const RunGroup> groups) {
  std::optional<double> out;
  for (const RunGroup& group : groups) {
    for (const RunResult& run : group.runs) {
      if (!run.target_accuracy || (out && *out != *run.target_accuracy)) return std::nullopt;
      out = run.target_accuracy;
    }
  }
  return out;
}

GroupSummary summarize_group(const RunGroup& group, std::optional<double> target) {
  GroupSummary out;
  out.name = group.name;
  out.runs = std::ssize(group.runs);
  std::vector<double> epochs, seconds, final_accuracy, best_accuracy, median_accuracy, step;
  for (const RunResult& run : group.runs) {
    if (run.status == "failed") {
      ++out.failed;
      continue;
    }
    if (const auto reached = target ? to_target(run, *target) : std::nullopt) {
      epochs.push_back(reached->epochs);
      seconds.push_back(reached->seconds);
    }
    final_accuracy.push_back(run.final_accuracy);
    best_accuracy.push_back(run.best_accuracy);
    median_accuracy.push_back(run.epochs.empty() ? run.final_accuracy : median_of_last(run.epochs));
    if (run.seconds_per_step > 0) step.push_back(run.seconds_per_step);
  }
  out.reached = std::ssize(epochs);
  if (out.reached > 0) {
    out.epochs = spread_of(epochs);
    out.seconds = spread_of(seconds);
  }
  out.final_accuracy = spread_of(final_accuracy);
  out.best_accuracy = spread_of(best_accuracy);
  out.median_accuracy = spread_of(median_accuracy);
  out.seconds_per_step = spread_of(step);
  return out;
}

/// The run of this seed that did not fail; null when there is none.
const RunResult* good_run(const RunGroup& group, std::uint64_t seed) {
  for (const RunResult& run : group.runs)
    if (run.seed == seed && run.status != "failed") return &run;
  return nullptr;
}

PairedDifference difference_of(const RunGroup& group, const RunGroup& baseline,
                               std::optional<double> target) {
  std::vector<double> accuracy, epochs, seconds;
  for (const RunResult& run : group.runs) {
    const RunResult* base = good_run(baseline, run.seed);
    if (run.status == "failed" || base == nullptr) continue;
    accuracy.push_back(run.final_accuracy - base->final_accuracy);
    const auto mine = target ? to_target(run, *target) : std::nullopt;
    const auto theirs = target ? to_target(*base, *target) : std::nullopt;
    if (!mine || !theirs) continue;
    epochs.push_back(mine->epochs - theirs->epochs);
    seconds.push_back(mine->seconds - theirs->seconds);
  }
  return {spread_of(accuracy), spread_of(epochs), spread_of(seconds)};
}

std::vector<std::string> winners(const std::vector<GroupSummary>& groups,
                                 const std::vector<Ranked>& ranked) {
  std::vector<std::string> out;
  for (const Ranked& entry : ranked) {
    if (entry.place == 0) out.push_back(groups[entry.group].name);
  }
  return out;
}

/// Values of all runs without repetition, in the order of their first appearance.
std::string distinct(std::span<const RunGroup> groups,
                     const std::function<std::string(const RunResult&)>& value) {
  std::vector<std::string> seen;
  for (const RunGroup& group : groups) {
    for (const RunResult& run : group.runs) {
      const std::string text = value(run);
      if (!text.empty() && std::ranges::find(seen, text) == seen.end()) seen.push_back(text);
    }
  }
  std::string out;
  for (const std::string& text : seen) out += (out.empty() ? "" : " / ") + text;
  return out;
}

std::string make_caption(std::span<const RunGroup> groups) {
  const std::string model = distinct(groups, [](const auto& run) { return run.model; });
  const std::string data = distinct(groups, [](const auto& run) { return run.data; });
  const std::string batch = distinct(groups, [](const auto& run) {
    return run.global_batch > 0 ? grouped(run.global_batch) : std::string();
  });
  const std::string ranks = distinct(groups, [](const auto& run) { return grouped(run.ranks); });
  const std::string size = distinct(groups, [](const auto& run) {
    return run.parameters > 0 ? grouped(run.parameters) : std::string();
  });
  std::set<std::uint64_t> seeds;
  for (const RunGroup& group : groups) {
    for (const RunResult& run : group.runs) seeds.insert(run.seed);
  }
  std::string out = model;
  if (!size.empty()) out += fmt::format(" ({} parameters)", size);
  if (!data.empty()) out += (out.empty() ? "" : " on ") + data;
  const auto add = [&out](const std::string& text) { out += (out.empty() ? "" : ", ") + text; };
  if (!batch.empty()) add("batch " + batch);
  if (!ranks.empty()) add(ranks + (ranks == "1" ? " rank" : " ranks"));
  if (!seeds.empty()) add(fmt::format("{} seed{}", seeds.size(), seeds.size() == 1 ? "" : "s"));
  return out;
}

}  // namespace

Spread spread_of(std::span<const double> values) {
  Spread out;
  double sum = 0;
  for (const double value : values) {
    if (!std::isfinite(value)) continue;
    out.min = out.count == 0 ? value : std::min(out.min, value);
    out.max = out.count == 0 ? value : std::max(out.max, value);
    sum += value;
    ++out.count;
  }
  if (out.count == 0) return out;
  // Rounding may push the mean of equal values past them.
  out.mean = std::clamp(sum / static_cast<double>(out.count), out.min, out.max);
  double squares = 0;
  for (const double value : values) {
    if (std::isfinite(value)) squares += (value - out.mean) * (value - out.mean);
  }
  if (out.count > 1) out.stddev = std::sqrt(squares / static_cast<double>(out.count - 1));
  out.half_width = confidence_half_width(out.stddev, out.count);
  return out;
}

Comparison summarize(std::span<const RunGroup> groups, std::optional<double> target) {
  if (!target) target = common_target(groups);
  Comparison out;
  out.target = target;
  for (const RunGroup& group : groups) out.groups.push_back(summarize_group(group, target));
  if (!groups.empty()) out.baseline = groups.front().name;
  for (std::size_t i = 1; i < groups.size(); ++i)
    out.groups[i].difference = difference_of(groups[i], groups.front(), target);
  out.fewest_epochs = winners(out.groups, rank_epochs(out.groups));
  out.fewest_seconds = winners(out.groups, rank_seconds(out.groups));
  out.highest_final = winners(out.groups, rank_final(out.groups));
  out.highest_best = winners(out.groups, rank_best(out.groups));
  const std::vector<Ranked> by_step = rank_step(out.groups);
  out.cheapest_step = winners(out.groups, by_step);
  if (!by_step.empty()) {
    const double cheapest = out.groups[by_step.front().group].seconds_per_step.mean;
    for (GroupSummary& group : out.groups) {
      if (cheapest > 0) group.step_ratio = group.seconds_per_step.mean / cheapest;
    }
  }
  out.caption = make_caption(groups);
  return out;
}

}  // namespace dkfac::app
