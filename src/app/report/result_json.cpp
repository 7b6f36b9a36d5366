#include "app/logging/run_summary.h"
#include "app/report/json.h"
#include "app/shared/report.h"

namespace dkfac::app {
namespace {

/// Medians over epochs are 0 before the first epoch has ended.
ordered_json measured(double value) { return value > 0 ? number(value) : nullptr; }

ordered_json object(const std::optional<LoadingMetrics>& l) {
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

ordered_json object(const EpochMetrics& r) {
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
    intervals.push_back({i.step, number(i.a), number(i.g), number(i.norm)});
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
          {"captured", launches->captured},
          {"replayed", launches->replayed},
          {"refused", launches->refused},
          {"reason", launches->reason}};
}

ordered_json object(const std::optional<SharedWork>& work) {
  if (!work) return nullptr;
  return {{"pairs", work->pairs}, {"fused", work->fused}};
}

}  // namespace

std::string to_json(const RunResult& r) {
  ordered_json activities = ordered_json::object(), epochs = ordered_json::array();
  for (const auto& [activity, seconds] : r.activity_seconds) activities[activity] = number(seconds);
  for (const EpochMetrics& metrics : r.epochs) epochs.push_back(object(metrics));
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
               {"final_loss", tested(r.final_loss)},
               {"best_loss", tested(r.best_loss)},
               {"chance_accuracy", number(r.chance)},
               {"target_accuracy", number(r.target.accuracy)},
               {"target_top5", number(r.target.top5)},
               {"target_loss", number(r.target.loss)},
               {"epochs_to_target", number(r.epochs_to_target)},
               {"steps_to_target", number(r.steps_to_target)},
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

}  // namespace dkfac::app
