#include <cmath>

#include <nlohmann/json.hpp>

#include "app/record/run_summary.h"
#include "app/report/findings.h"
#include "app/shared/report.h"

namespace dkfac::app {
namespace {

using nlohmann::ordered_json;

/// JSON has no NaN or infinity; both become null.
ordered_json number(double value) { return std::isfinite(value) ? ordered_json(value) : nullptr; }

ordered_json number(const std::optional<double>& value) { return value ? number(*value) : nullptr; }

/// Medians over epochs are 0 before the first epoch has ended.
ordered_json measured(double value) { return value > 0 ? number(value) : nullptr; }

ordered_json object(const std::optional<LoadingRecord>& l) {
  if (!l) return nullptr;
  return {{"wait_fraction", number(l->wait_fraction)},
          {"images", number(l->images)},
          {"read_seconds", number(l->read_s)},
          {"decode_seconds", number(l->decode_s)},
          {"resize_seconds", number(l->resize_s)},
          {"normalise_seconds", number(l->normalise_s)},
          {"read_rate", number(l->rate(l->read_s))},
          {"decode_rate", number(l->rate(l->decode_s))},
          {"resize_rate", number(l->rate(l->resize_s))},
          {"normalise_rate", number(l->rate(l->normalise_s))},
          {"bad", number(l->bad)}};
}

ordered_json object(const EpochRecord& r) {
  return {{"epoch", r.epoch},
          {"step", r.step},
          {"image_size", r.image_size},
          {"global_batch", r.global_batch},
          {"lr", number(r.lr)},
          {"train_loss", number(r.train_loss)},
          {"train_accuracy", number(r.train_accuracy)},
          {"train_top5", number(r.train_top5)},
          {"evaluated", r.evaluated},
          {"test_loss", number(r.test_loss)},
          {"test_accuracy", number(r.test_accuracy)},
          {"test_top5", number(r.test_top5)},
          {"plain_accuracy", number(r.plain_accuracy)},
          {"train_seconds", number(r.train_seconds)},
          {"images_per_second", number(r.images_per_second)},
          {"skipped_steps", r.skipped_steps},
          {"utilisation", number(r.utilisation)},
          {"peak_memory", number(r.peak_memory)},
          {"loading", object(r.loading)}};
}

ordered_json object(const CurvatureResult& c) {
  if (c.empty()) return nullptr;
  ordered_json intervals = ordered_json::array();
  for (const auto& i : c.intervals)
    intervals.push_back({i.step, number(i.a), number(i.g), number(i.batch_norm)});
  return {{"a_kept", number(c.a_kept())},
          {"g_kept", number(c.g_kept())},
          {"a_renewed", number(c.a_renewed)},
          {"a_all", number(c.a_all)},
          {"g_renewed", number(c.g_renewed)},
          {"g_all", number(c.g_all)},
          {"bytes", number(c.bytes)},
          {"bytes_skipped", number(c.bytes_skipped)},
          {"flops", number(c.flops)},
          {"flops_skipped", number(c.flops_skipped)},
          {"bytes_saved", number(c.bytes_saved())},
          {"flops_saved", number(c.flops_saved())},
          {"inverses", c.inverses},
          {"intervals", std::move(intervals)}};
}

ordered_json object(const std::optional<LaunchCounts>& launches) {
  if (!launches) return nullptr;
  return {{"eager", launches->eager},
          {"recorded", launches->recorded},
          {"replayed", launches->replayed},
          {"refused", launches->refused},
          {"reason", launches->reason}};
}

ordered_json object(const std::optional<SharedWork>& work) {
  if (!work) return nullptr;
  return {{"pairs", work->pairs}, {"fused", work->fused}};
}

ordered_json interval(const Spread& spread) {
  if (!spread.half_width) return nullptr;
  return {number(spread.mean - *spread.half_width), number(spread.mean + *spread.half_width)};
}

ordered_json object(const std::optional<Spread>& spread) {
  if (!spread || spread->count == 0) return nullptr;
  return {{"mean", number(spread->mean)},       {"min", number(spread->min)},
          {"max", number(spread->max)},         {"stddev", number(spread->stddev)},
          {"confidence_95", interval(*spread)}, {"count", spread->count}};
}

ordered_json object(const std::optional<PairedDifference>& difference) {
  if (!difference) return nullptr;
  return {{"final_accuracy", object(difference->final_accuracy)},
          {"epochs_to_target", object(difference->epochs)},
          {"seconds_to_target", object(difference->seconds)}};
}

ordered_json object(const GroupSummary& group) {
  return {{"name", group.name},
          {"runs", group.runs},
          {"failed", group.failed},
          {"reached", group.reached},
          {"epochs_to_target", object(group.epochs)},
          {"seconds_to_target", object(group.seconds)},
          {"final_accuracy", object(group.final_accuracy)},
          {"best_accuracy", object(group.best_accuracy)},
          {"median_accuracy", object(group.median_accuracy)},
          {"seconds_per_step", object(group.seconds_per_step)},
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
                                          {"seconds_per_step", "cheapest_step"}};

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
                        {"difference_to_first", object(std::optional(place.difference))},
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

/// Replaces text that is not UTF-8 (a path, an error message) rather than failing.
std::string dump(const ordered_json& json) {
  return json.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace

std::string to_json(const RunResult& r) {
  ordered_json activities = ordered_json::object(), epochs = ordered_json::array();
  for (const auto& [activity, seconds] : r.activity_seconds) activities[activity] = number(seconds);
  for (const EpochRecord& record : r.epochs) epochs.push_back(object(record));
  const auto tested = [known = any_evaluated(r)](double value) {
    return known ? number(value) : ordered_json(nullptr);
  };
  return dump({{"status", r.status},
               {"error", r.error},
               {"name", r.name},
               {"optimizer", r.optimizer},
               {"model", r.model},
               {"data", r.data},
               {"version", r.version},
               {"seed", r.seed},
               {"ranks", r.ranks},
               {"device", r.device},
               {"global_batch", r.global_batch},
               {"parameters", r.parameters},
               {"steps", r.steps},
               {"skipped_steps", r.skipped_steps},
               {"final_accuracy", tested(r.final_accuracy)},
               {"best_accuracy", tested(r.best_accuracy)},
               {"median_accuracy", tested(r.median_accuracy)},
               {"chance_accuracy", number(r.chance)},
               {"target_accuracy", number(r.target.accuracy)},
               {"target_top5", number(r.target.top5)},
               {"epochs_to_target", number(r.epochs_to_target)},
               {"seconds_to_target", number(r.seconds_to_target)},
               {"train_seconds", number(r.train_seconds)},
               {"total_seconds", number(r.total_seconds)},
               {"price_per_hour", r.price_per_hour > 0 ? number(r.price_per_hour) : nullptr},
               {"dollars", number(r.dollars(r.total_seconds))},
               {"dollars_to_target", number(r.dollars(r.seconds_to_target))},
               {"images_per_second", measured(r.images_per_second)},
               {"seconds_per_step", measured(r.seconds_per_step)},
               {"activity_seconds", std::move(activities)},
               {"launches", object(r.launches)},
               {"preconditioning_launches", object(r.preconditioning_launches)},
               {"fused_moments", object(r.fused_moments)},
               {"fused_backward", object(r.fused_backward)},
               {"curvature", object(r.curvature)},
               {"bad_photos", r.bad_photos},
               {"epochs", std::move(epochs)},
               {"configuration", r.configuration}});
}

std::string to_json(const Comparison& comparison) {
  ordered_json groups = ordered_json::array();
  for (const GroupSummary& group : comparison.groups) groups.push_back(object(group));
  return dump({{"caption", comparison.caption},
               {"target", number(comparison.target.accuracy)},
               {"target_top5", number(comparison.target.top5)},
               {"baseline", comparison.baseline},
               {"groups", std::move(groups)},
               {"standings", standings_of(comparison)},
               {"winners", winners_of(comparison)},
               {"lead", lead(comparison, Dash::plain)},
               {"verdict", verdict(comparison)}});
}

}  // namespace dkfac::app
