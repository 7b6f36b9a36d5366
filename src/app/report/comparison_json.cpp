#include "app/logging/run_summary.h"
#include "app/report/details.h"
#include "app/report/findings.h"
#include "app/report/json.h"
#include "app/report/settings.h"
#include "app/report/table.h"
#include "app/shared/report.h"

namespace dkfac::app {
namespace {

ordered_json interval(const Spread& spread) {
  if (!spread.half_width) return nullptr;
  return {number(spread.mean - *spread.half_width), number(spread.mean + *spread.half_width)};
}

ordered_json object(const Spread& spread) {
  if (spread.count == 0) return nullptr;
  return {{"mean", number(spread.mean)},       {"min", number(spread.min)},
          {"max", number(spread.max)},         {"stddev", number(spread.stddev)},
          {"confidence_95", interval(spread)}, {"count", spread.count}};
}

ordered_json object(const std::optional<Spreads>& difference) {
  if (!difference) return nullptr;
  return {{"final_accuracy", object((*difference)[Respect::final_accuracy])},
          {"final_loss", object((*difference)[Respect::final_loss])},
          {"epochs_to_target", object((*difference)[Respect::epochs])},
          {"seconds_to_target", object((*difference)[Respect::seconds])}};
}

ordered_json object(const GroupSummary& group) {
  const Spreads& values = group.values;
  return {{"name", group.name},
          {"runs", group.runs},
          {"failed", group.failed},
          {"reached", group.reached},
          {"epochs_to_target", object(values[Respect::epochs])},
          {"seconds_to_target", object(values[Respect::seconds])},
          {"final_accuracy", object(values[Respect::final_accuracy])},
          {"best_accuracy", object(values[Respect::best_accuracy])},
          {"median_accuracy", object(group.median_accuracy)},
          {"final_loss", object(values[Respect::final_loss])},
          {"best_loss", object(values[Respect::best_loss])},
          {"seconds_per_step", object(values[Respect::step])},
          {"chance_accuracy", number(group.chance)},
          {"step_ratio", group.step_ratio > 0 ? number(group.step_ratio) : nullptr},
          {"difference_to_baseline", object(group.difference)}};
}

struct StandingKeys {
  const char *standing, *winners;
};
/// In the order of Respect.
constexpr StandingKeys kStandingKeys[] = {{"epochs_to_target", "fewest_epochs"},
                                          {"seconds_to_target", "fewest_seconds"},
                                          {"final_accuracy", "highest_final_accuracy"},
                                          {"best_accuracy", "highest_best_accuracy"},
                                          {"seconds_per_step", "cheapest_step"},
                                          {"final_loss", "lowest_final_loss"},
                                          {"best_loss", "lowest_best_loss"}};

const StandingKeys& keys_of(const Standing& standing) {
  return kStandingKeys[static_cast<std::size_t>(standing.respect)];
}

/// The order of the groups, and which of them are shown to be worse than the first.
ordered_json standings_of(const Comparison& comparison) {
  ordered_json out = ordered_json::object();
  for (const Standing& standing : comparison.standings) {
    ordered_json places = ordered_json::array();
    for (const Place& place : standing.places)
      places.push_back({{"name", comparison.groups[place.group].name},
                        {"difference_to_first", object(place.difference)},
                        {"shown_worse", place.worse}});
    out[keys_of(standing).standing] = {{"difference_shown", !standing.best().empty()},
                                       {"places", std::move(places)}};
  }
  return out;
}

/// The groups that are shown to be best; none where no difference is shown.
ordered_json winners_of(const Comparison& comparison) {
  ordered_json out = ordered_json::object();
  for (const Standing& standing : comparison.standings) {
    ordered_json names = ordered_json::array();
    for (const std::size_t group : standing.best()) names.push_back(comparison.groups[group].name);
    out[keys_of(standing).winners] = std::move(names);
  }
  return out;
}

ordered_json object(const Point& point) {
  return {{"epoch", point.epoch},
          {"steps", number(point.steps)},
          {"seconds", number(point.seconds)},
          {"mean", number(point.mean)},
          {"low", number(point.low)},
          {"high", number(point.high)},
          {"runs", point.runs}};
}

ordered_json curves_of(const RunGroup& group) {
  ordered_json out = ordered_json::object();
  for (const Measure measure : {Measure::test_accuracy, Measure::train_loss, Measure::test_loss,
                                Measure::test_top5, Measure::train_top5}) {
    ordered_json segments = ordered_json::array();
    for (const Segment& segment : curve_of(group, measure)) {
      segments.push_back(ordered_json::array());
      for (const Point& point : segment) segments.back().push_back(object(point));
    }
    out[name_of(measure)] = std::move(segments);
  }
  return out;
}

ordered_json object(const std::optional<LoadingMetrics>& l) {
  if (!l) return nullptr;
  return {{"wait_fraction", number(l->wait_fraction)},
          {"rate", number(l->rate(l->all_s()))},
          {"read_rate", number(l->rate(l->read_s))},
          {"decode_rate", number(l->rate(l->decode_s))},
          {"resize_rate", number(l->rate(l->resize_s))},
          {"normalise_rate", number(l->rate(l->normalise_s))},
          {"bad", number(l->bad)}};
}

ordered_json object(const std::optional<StalenessSummary>& staleness) {
  if (!staleness) return nullptr;
  ordered_json intervals = ordered_json::array();
  for (const auto& at : staleness->first->curvature.intervals)
    intervals.push_back({at.step, number(at.a), number(at.g), number(at.norm)});
  return {{"a_kept", object(staleness->a_kept)},
          {"g_kept", object(staleness->g_kept)},
          {"bytes_saved", object(staleness->bytes_saved)},
          {"flops_saved", object(staleness->flops_saved)},
          {"seed", staleness->first->seed},
          {"intervals", std::move(intervals)}};
}

/// What the report tells of a group besides its summary.
ordered_json details_of(const RunGroup& group) {
  ordered_json activities = ordered_json::object();
  for (const auto& [activity, seconds] : step_seconds(group))
    activities[activity] = number(seconds);
  return {{"curves", curves_of(group)},
          {"step_seconds", std::move(activities)},
          {"loading", object(loading_of(group))},
          {"staleness", object(staleness_of(group))},
          {"configuration", configuration_of(group)}};
}

/// One run in the list of all; its epochs are in its result.json.
ordered_json object(const NamedRun& run) {
  const EpochMetrics* tested = nullptr;
  for (const EpochMetrics& epoch : run->epochs)
    if (epoch.evaluated) tested = &epoch;
  return {
      {"group", run.group},
      {"seed", run->seed},
      {"status", run->status},
      {"error", run->error},
      {"version", run->version},
      {"epochs", run->epochs.size()},
      {"steps", run->steps},
      {"skipped_steps", run->skipped_steps},
      {"epochs_to_target", number(run->epochs_to_target)},
      {"steps_to_target", number(run->steps_to_target)},
      {"seconds_to_target", number(run->seconds_to_target)},
      {"final_accuracy", tested != nullptr ? number(run->final_accuracy) : nullptr},
      {"final_loss", tested != nullptr ? number(run->final_loss) : nullptr},
      {"final_top5", tested != nullptr ? number(tested->test_top5) : nullptr},
      {"train_seconds", number(run->train_seconds)},
      {"dollars", number(run->dollars(run->total_seconds))},
      {"dollars_to_target", number(run->dollars(run->seconds_to_target))},
      {"images_per_second", run->images_per_second > 0 ? number(run->images_per_second) : nullptr},
      {"bad_photos", run->bad_photos}};
}

ordered_json object(const Finding& finding, const Comparison& comparison) {
  ordered_json winners = ordered_json::array();
  for (const std::size_t group : finding.winners) winners.push_back(comparison.groups[group].name);
  return {{"what", finding.what},
          {"winners", std::move(winners)},
          {"value", finding.value},
          {"next", finding.next}};
}

/// Null for a table without rows.
ordered_json object(const Table& table) {
  if (table.rows.empty()) return nullptr;
  ordered_json heads = ordered_json::array(), rows = ordered_json::array();
  for (const Head& head : table.heads) heads.push_back(head.line());
  for (const auto& row : table.rows) {
    rows.push_back(ordered_json::array());
    for (const Cell& cell : row) rows.back().push_back({{"text", cell.text}, {"best", cell.best}});
  }
  return {{"heads", std::move(heads)}, {"rows", std::move(rows)}};
}

ordered_json settings_of_groups(std::span<const RunGroup> groups) {
  ordered_json out = ordered_json::object();
  for (const auto& [key, values] : differing_settings(groups)) {
    ordered_json row = ordered_json::array();
    for (const auto& value : values) row.push_back(value ? ordered_json(*value) : nullptr);
    out[key] = std::move(row);
  }
  return out;
}

}  // namespace

std::string to_json(std::span<const RunGroup> groups, const Comparison& comparison,
                    const std::string& title) {
  ordered_json summaries = ordered_json::array(), runs = ordered_json::array(),
               found = ordered_json::array();
  for (std::size_t i = 0; i < groups.size(); ++i) {
    summaries.push_back(object(comparison.groups[i]));
    summaries.back().update(details_of(groups[i]));
  }
  for (const NamedRun& run : runs_of(groups)) runs.push_back(object(run));
  for (const Finding& finding : findings(comparison, Dash::en))
    found.push_back(object(finding, comparison));
  return dump({{"title", title},
               {"caption", comparison.caption},
               {"target", number(comparison.target.accuracy)},
               {"target_top5", number(comparison.target.top5)},
               {"target_loss", number(comparison.target.loss)},
               {"baseline", comparison.baseline},
               {"groups", std::move(summaries)},
               {"standings", standings_of(comparison)},
               {"winners", winners_of(comparison)},
               {"lead", lead(comparison, Dash::en)},
               {"findings", std::move(found)},
               {"caveats", caveats(comparison)},
               {"verdict", verdict(comparison)},
               {"table", object(table_of(comparison, Dash::en))},
               {"interval_table", object(interval_table(comparison))},
               {"interval_note", kIntervalNote},
               {"settings", settings_of_groups(groups)},
               {"runs", std::move(runs)}});
}

}  // namespace dkfac::app
