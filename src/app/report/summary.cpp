#include <algorithm>
#include <cmath>
#include <functional>
#include <set>

#include <fmt/core.h>
#include <fmt/ranges.h>

#include "app/logging/run_summary.h"
#include "app/report/details.h"
#include "app/report/format.h"
#include "app/report/ranking.h"
#include "app/report/statistics.h"
#include "app/shared/report.h"

namespace dkfac::app {
namespace {

/// Returns the targets if all runs have the same.
Targets common_target(std::span<const RunGroup> groups) {
  const std::vector<NamedRun> runs = runs_of(groups);
  const auto alike = [&](const NamedRun& run) { return run->target == runs.front()->target; };
  return !runs.empty() && std::ranges::all_of(runs, alike) ? runs.front()->target : Targets{};
}

/// Every respect, in order.
std::array<Respect, kRespects> all_respects() {
  std::array<Respect, kRespects> all{};
  for (std::size_t i = 0; i < kRespects; ++i) all[i] = static_cast<Respect>(i);
  return all;
}

GroupSummary summarize_group(const RunGroup& group, const Targets& target) {
  GroupSummary out;
  out.name = group.name;
  out.runs = std::ssize(group.runs);
  out.failed = std::ranges::count(group.runs, "failed", &RunResult::status);
  const auto spread = [&](const auto& value) {
    std::vector<double> values;  // NaN is excluded.
    for (const RunResult& run : group.runs) values.push_back(value(run));
    return spread_of(values);
  };
  for (const Respect respect : all_respects())
    out.values[respect] =
        spread([&](const RunResult& run) { return value_in(respect, run, target); });
  out.reached = out.values[Respect::epochs].count;
  out.median_accuracy = spread([](const RunResult& run) {
    return run.status != "failed" && any_evaluated(run) ? median_of_last(run.epochs) : NAN;
  });
  const auto alike = [&](const RunResult& run) { return run.chance == group.runs[0].chance; };
  if (!group.runs.empty() && std::ranges::all_of(group.runs, alike))
    out.chance = group.runs[0].chance;
  return out;
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

std::vector<std::size_t> Standing::best() const {
  std::vector<std::size_t> out;
  for (const Place& place : places)
    if (!place.worse) out.push_back(place.group);
  return out.size() < places.size() ? out : std::vector<std::size_t>{};
}

Comparison summarize(std::span<const RunGroup> groups, const Targets& wanted) {
  const Targets target = wanted.any() ? wanted : common_target(groups);
  Comparison out;
  out.target = target;
  for (const RunGroup& group : groups) out.groups.push_back(summarize_group(group, target));
  if (!groups.empty()) out.baseline = groups.front().name;
  for (std::size_t i = 1; i < groups.size(); ++i) {
    Spreads& difference = out.groups[i].difference.emplace();
    for (const Respect respect : all_respects())
      difference[respect] = paired_difference(respect, groups[i], groups.front(), target);
  }
  const bool accuracy = out.has_accuracy();
  for (const Respect respect :
       {Respect::epochs, Respect::seconds, accuracy ? Respect::final_accuracy : Respect::final_loss,
        accuracy ? Respect::best_accuracy : Respect::best_loss, Respect::step})
    out.standings.push_back(standing_of(respect, groups, out.groups, target));
  if (const auto& by_step = out.standings.back().places; !by_step.empty()) {
    const double cheapest = out.groups[by_step.front().group].values[Respect::step].mean;
    for (GroupSummary& group : out.groups)
      if (cheapest > 0) group.step_ratio = group.values[Respect::step].mean / cheapest;
  }
  out.caption = make_caption(groups);
  return out;
}

}  // namespace dkfac::app
