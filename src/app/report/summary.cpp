#include <algorithm>
#include <cmath>
#include <functional>
#include <set>

#include <fmt/core.h>
#include <fmt/ranges.h>

#include "app/record/run_summary.h"
#include "app/report/format.h"
#include "app/report/ranking.h"
#include "app/report/series.h"
#include "app/report/statistics.h"
#include "app/shared/report.h"

namespace dkfac::app {
namespace {

struct ToTarget {
  double epochs = 0, seconds = 0;
};

std::optional<ToTarget> to_target(const RunResult& run, const Targets& target) {
  if (!target.any()) return std::nullopt;
  for (const EpochRecord& record : run.epochs)
    if (target.reached(record))
      return ToTarget{static_cast<double>(record.epoch), record.train_seconds};
  if (!run.epochs.empty() || !run.epochs_to_target || !run.seconds_to_target) return std::nullopt;
  return ToTarget{*run.epochs_to_target, *run.seconds_to_target};
}

/// Returns the targets if all runs have the same.
Targets common_target(std::span<const RunGroup> groups) {
  const std::vector<NamedRun> runs = runs_of(groups);
  const auto alike = [&](const NamedRun& run) { return run->target == runs.front()->target; };
  return !runs.empty() && std::ranges::all_of(runs, alike) ? runs.front()->target : Targets{};
}

GroupSummary summarize_group(const RunGroup& group, const Targets& target) {
  GroupSummary out;
  out.name = group.name;
  out.runs = std::ssize(group.runs);
  std::vector<const RunResult*> good;
  std::vector<double> epochs, seconds;
  for (const RunResult& run : group.runs) {
    if (run.status == "failed") continue;
    good.push_back(&run);
    const auto reached = to_target(run, target);
    if (!reached) continue;
    epochs.push_back(reached->epochs);
    seconds.push_back(reached->seconds);
  }
  out.failed = out.runs - std::ssize(good);
  out.reached = std::ssize(epochs);
  if (out.reached > 0) {
    out.epochs = spread_of(epochs);
    out.seconds = spread_of(seconds);
  }
  const auto spread = [&good](const auto& value) {
    std::vector<double> values;
    for (const RunResult* run : good) values.push_back(value(*run));
    return spread_of(values);
  };
  const auto tested = [&](const auto& value) {  // NaN is excluded.
    return spread([&](const auto& run) { return any_evaluated(run) ? value(run) : NAN; });
  };
  out.final_accuracy = tested([](const auto& run) { return run.final_accuracy; });
  out.best_accuracy = tested([](const auto& run) { return run.best_accuracy; });
  out.median_accuracy = tested([](const auto& run) { return median_of_last(run.epochs); });
  out.seconds_per_step =  // NaN is excluded.
      spread([](const auto& run) { return run.seconds_per_step > 0 ? run.seconds_per_step : NAN; });
  return out;
}

/// Returns the run of this seed that did not fail; null when there is none.
const RunResult* good_run(const RunGroup& group, std::uint64_t seed) {
  for (const RunResult& run : group.runs)
    if (run.seed == seed && run.status != "failed") return &run;
  return nullptr;
}

PairedDifference difference_of(const RunGroup& group, const RunGroup& baseline,
                               const Targets& target) {
  std::vector<double> accuracy, epochs, seconds;
  for (const RunResult& run : group.runs) {
    const RunResult* base = good_run(baseline, run.seed);
    if (run.status == "failed" || base == nullptr) continue;
    if (any_evaluated(run) && any_evaluated(*base))
      accuracy.push_back(run.final_accuracy - base->final_accuracy);
    const auto mine = to_target(run, target), theirs = to_target(*base, target);
    if (!mine || !theirs) continue;
    epochs.push_back(mine->epochs - theirs->epochs);
    seconds.push_back(mine->seconds - theirs->seconds);
  }
  return {spread_of(accuracy), spread_of(epochs), spread_of(seconds)};
}

/// Lists the values of all runs without repetition, in the order of their first appearance.
std::string distinct(std::span<const RunGroup> groups,
                     const std::function<std::string(const RunResult&)>& value) {
  std::vector<std::string> seen;
  for (const NamedRun& run : runs_of(groups))
    if (std::string text = value(*run.run);
        !text.empty() && std::ranges::find(seen, text) == seen.end())
      seen.push_back(std::move(text));
  return fmt::format("{}", fmt::join(seen, " / "));
}

std::string make_caption(std::span<const RunGroup> groups) {
  // 0 in files without this number.
  const auto counted = [](std::int64_t n) { return n > 0 ? grouped(n) : std::string(); };
  const std::string data = distinct(groups, [](const auto& run) { return run.data; });
  const std::string batch =
      distinct(groups, [&](const auto& r) { return counted(r.global_batch); });
  const std::string ranks = distinct(groups, [](const auto& run) { return grouped(run.ranks); });
  const std::string size = distinct(groups, [&](const auto& r) { return counted(r.parameters); });
  std::set<std::uint64_t> seeds;
  for (const NamedRun& run : runs_of(groups)) seeds.insert(run->seed);
  std::string out = distinct(groups, [](const auto& run) { return run.model; });
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
  // Rounding may move the mean of equal values outside their range.
  out.mean = std::clamp(sum / static_cast<double>(out.count), out.min, out.max);
  double squares = 0;
  for (const double value : values) {
    if (std::isfinite(value)) squares += (value - out.mean) * (value - out.mean);
  }
  if (out.count > 1) out.stddev = std::sqrt(squares / static_cast<double>(out.count - 1));
  out.half_width = confidence_half_width(out.stddev, out.count);
  return out;
}

Comparison summarize(std::span<const RunGroup> groups, const Targets& wanted) {
  const Targets target = wanted.any() ? wanted : common_target(groups);
  Comparison out;
  out.target = target;
  for (const RunGroup& group : groups) out.groups.push_back(summarize_group(group, target));
  if (!groups.empty()) out.baseline = groups.front().name;
  for (std::size_t i = 1; i < groups.size(); ++i)
    out.groups[i].difference = difference_of(groups[i], groups.front(), target);
  const auto winners = [&out](Respect respect) {
    std::vector<std::string> names;
    for (const Ranked& entry : rank(out.groups, respect))
      if (entry.place == 0) names.push_back(out.groups[entry.group].name);
    return names;
  };
  out.fewest_epochs = winners(Respect::epochs);
  out.fewest_seconds = winners(Respect::seconds);
  out.highest_final = winners(Respect::final_accuracy);
  out.highest_best = winners(Respect::best_accuracy);
  out.cheapest_step = winners(Respect::step);
  if (const auto by_step = rank(out.groups, Respect::step); !by_step.empty()) {
    const double cheapest = out.groups[by_step.front().group].seconds_per_step.mean;
    for (GroupSummary& group : out.groups)
      if (cheapest > 0) group.step_ratio = group.seconds_per_step.mean / cheapest;
  }
  out.caption = make_caption(groups);
  return out;
}

}  // namespace dkfac::app
