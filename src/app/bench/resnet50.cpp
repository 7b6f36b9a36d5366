// Benchmark of the training steps of a recipe, with real or synthetic photographs.
#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

#include <fmt/core.h>

#include "dkfac/core/device_info.h"
#include "dkfac/core/error.h"

#include "app/bench/bench.h"
#include "app/bench/measure.h"
#include "app/logging/number_text.h"
#include "app/logging/progress.h"
#include "app/run/agreement.h"
#include "app/run/job.h"
#include "app/run/placement.h"
#include "app/run/run_one.h"
#include "app/shared/phases.h"
#include "app/training/state.h"

namespace dkfac::app::bench {

namespace {

using nlohmann::ordered_json;
using ActivityMap = std::map<std::string, double>;

/// Seconds between two progress lines.
constexpr double kReportSeconds = 10;

/// Collects the measurements of the steps after the warm-up.
class Meter {
 public:
  Meter(int warm_up, bool prints, const Terminal& terminal)
      : warm_up_(warm_up), prints_(prints), terminal_(terminal) {}

  /// Call at the end of each step.
  void step(const TrainState& s, const StepMetrics& metrics) {
    // Excludes set-up, evaluation and checkpoints.
    const double now = s.result.train_seconds, passed = now - std::exchange(trained_, now);
    // A rejected step has no loss.
    if (s.report.updated) losses_.push_back(metrics.loss);
    ++done_;
    if (done_ > warm_up_) add(s, passed);
    if (done_ == warm_up_) {
      before_ = s.result.activity_seconds;
      skipped_before_ = s.result.skipped_steps;
    }
    if (!prints_ || last_report_.seconds() < kReportSeconds) return;
    last_report_.lap();
    terminal_.err << fmt::format("step {}  loss {:.4f}  {} images/s\n", done_, metrics.loss,
                                 counted_any() ? three_digits(images_per_second()) : "-")
                  << std::flush;
  }

  [[nodiscard]] bool counted_any() const { return !seconds_.empty(); }
  [[nodiscard]] double images_per_second() const { return total_ > 0 ? images_ / total_ : 0; }
  [[nodiscard]] const std::vector<double>& losses() const { return losses_; }

  /// Milliseconds per step.
  [[nodiscard]] ActivityMap activities(const RunResult& result) const {
    ActivityMap out;
    for (const auto& [activity, seconds] : result.activity_seconds) {
      const auto old = before_.find(activity);
      out[activity] = 1e3 * (seconds - (old == before_.end() ? 0 : old->second)) / steps();
    }
    return out;
  }

  [[nodiscard]] ordered_json json(const RunResult& result) const {
    ordered_json kinds = ordered_json::object(), host = ordered_json::object();
    for (const auto& [kind, seconds] : by_kind_) kinds[kind] = to_json(quartiles_of(seconds), 1e3);
    for (const auto& [part, seconds] : optimizer_) host[part] = 1e3 * seconds / steps();
    return {{"images_per_second", images_per_second()},
            {"ms", to_json(quartiles_of(seconds_), 1e3)},
            {"ms_by_kind", std::move(kinds)},
            {"activity_ms", activities(result)},
            {"optimizer_host_ms", std::move(host)},
            {"bytes_to_collectives", bytes_ / steps()},
            {"skipped_steps", result.skipped_steps - skipped_before_},
            {"skipped_in_warm_up", skipped_before_},
            {"loss_first", losses_.empty() ? std::nan("") : losses_.front()},
            {"loss_last", losses_.empty() ? std::nan("") : losses_.back()}};
  }

 private:
  [[nodiscard]] double steps() const { return static_cast<double>(seconds_.size()); }

  void add(const TrainState& s, double passed) {
    seconds_.push_back(passed);
    total_ += passed;
    images_ += static_cast<double>(s.step_images);
    by_kind_[kind_of(s.report.statistics_refreshed, s.report.inverses_refreshed)].push_back(passed);
    bytes_ += static_cast<double>(s.report.bytes);
    const StepSeconds& parts = s.report.seconds;
    optimizer_["statistics"] += parts.statistics;
    optimizer_["reduce"] += parts.exchange - parts.gather;
    optimizer_["gather"] += parts.gather;
    optimizer_["inverse"] += parts.inverse;
    optimizer_["update"] += parts.update;
  }

  const int warm_up_;
  const bool prints_;
  const Terminal& terminal_;
  double trained_ = 0;
  Stopwatch last_report_;
  int done_ = 0;
  std::vector<double> seconds_, losses_;
  std::map<std::string, std::vector<double>> by_kind_;
  ActivityMap before_, optimizer_;
  double total_ = 0, images_ = 0, bytes_ = 0;
  std::int64_t skipped_before_ = 0;
};

std::string table(const ordered_json& json, const ActivityMap& activities) {
  std::string out = fmt::format(
      "{} on {}: {} images/s, {} ms a step (median), {} of {} steps skipped\n",
      json["name"].get<std::string>(), json["device"].get<std::string>(),
      three_digits(json["images_per_second"].get<double>()),
      three_digits(json["ms"]["median"].get<double>()), json["skipped_steps"].get<std::int64_t>(),
      json["ms"]["count"].get<std::int64_t>());
  for (const char* activity : {"data", "forward", "backward", "passes", "statistics", "exchange",
                               "inverse", "update", "evaluation"}) {
    const auto found = activities.find(activity);
    if (found != activities.end())
      out += fmt::format("  {:<12} {:>10} ms\n", activity, three_digits(found->second));
    if (found == activities.end() || found->first != "exchange") continue;
    for (const char* part : {"reduce", "gather"})
      out += fmt::format("    {:<10} {:>10} ms\n", part,
                         three_digits(json["optimizer_host_ms"].value(part, 0.0)));
  }
  if (json.contains("top1"))
    out += fmt::format("top-1 {:.2f} %\n", 100 * json["top1"].get<double>());
  if (json.contains("top5"))
    out += fmt::format("top-5 {:.2f} %\n", 100 * json["top5"].get<double>());
  return out;
}

/// Sets a key in the sections and in each phase that has its own value.
void set_everywhere(std::vector<std::string>& set, const std::vector<Phase>& phases,
                    const std::string& key, std::int64_t value) {
  if (value == 0) return;
  set.push_back(fmt::format("{}={}", key, value));
  for (std::size_t i = 0; i < phases.size(); ++i)
    if (std::ranges::count(phases[i].changed, key) > 0)
      set.push_back(fmt::format("phase.{}.{}={}", i + 1, key, value));
}

/// Assembles the result of a finished training; collective.
Outcome outcome_of(const BenchCommand& command, TrainState& s, const Meter& meter) {
  Outcome outcome;
  const RunResult& result = s.result;
  const Config& config = s.config;
  const Config& now = s.now->phase.config;
  ordered_json& json = outcome.json;
  json = {{"config", command.config.string()},
          {"name", result.name},
          {"optimizer", result.optimizer},
          {"model", result.model},
          {"data", result.data},
          {"device", result.device},
          {"precision", std::string(name_of(config.run.precision))},
          {"global_batch", now.train.global_batch},
          {"micro_batches", now.train.micro_batches},
          {"image_size", now.data.image_size},
          {"parameters", result.parameters},
          {"flops_per_image", nn::training_flops(*s.model)}};
  json.update(meter.json(result));
  json["train_seconds"] = result.train_seconds;
  if (s.peak_flops)
    json["utilisation"] = nn::training_flops(*s.model) * meter.images_per_second() / *s.peak_flops;
  if (s.ctx.device().is_cuda())
    json["peak_device_bytes"] = static_cast<double>(device_memory(s.ctx.device()).peak_used);
  if (!command.data.empty()) {
    const Tally tested = evaluate_epoch(s).tested;
    json["top1"] = tested.accuracy();
    if (const auto top5 = top5_accuracy(tested, s.model->outputs(), config.run.target_top5))
      json["top5"] = *top5;
  }
  json["configuration"] = result.configuration;
  outcome.text = table(json, meter.activities(result));
  const std::string wrong = wrong_parameters(s);
  if (!wrong.empty()) outcome.wrong.push_back(wrong);
  if (!meter.counted_any()) outcome.wrong.emplace_back("no step behind the warm-up");
  if (meter.losses().empty()) outcome.wrong.emplace_back("no step changed the weights");
  for (const double loss : meter.losses())
    if (!std::isfinite(loss)) outcome.wrong = {"a loss is not finite"};
  return outcome;
}

}  // namespace

Config recipe_config(const BenchCommand& command, int ranks) {
  const Config recipe = load_config(command.config);
  // Recipes set it for many ranks.
  const std::int64_t eval_batch = std::min<std::int64_t>(recipe.run.eval_batch, 256 * ranks);
  std::vector<std::string> set{"run.log_interval=0", "checkpoint.every_epochs=0",
                               fmt::format("run.eval_batch={}", eval_batch),
                               fmt::format("run.threads={}", command.threads)};
  if (command.data.empty())
    set.insert(set.end(), {"data.name=synthetic-photos", "data.synthetic_train=1281167",
                           "data.synthetic_test=1000", "data.synthetic_size=256",
                           "data.synthetic_classes=1000"});
  else
    set.push_back("data.path=" + command.data.string());
  const std::vector<Phase> phases = phases_of(recipe);
  set_everywhere(set, phases, "data.image_size", command.image_size);
  set_everywhere(set, phases, "train.global_batch", command.global_batch);
  set_everywhere(set, phases, "train.micro_batches", command.micro_batches);
  set.insert(set.end(), command.set.begin(), command.set.end());
  return load_config(command.config, set);
}

Outcome bench_recipe(const BenchCommand& command, std::shared_ptr<comm::Communicator> host,
                     DataCache& cache, const Terminal& terminal) {
  const Config config = recipe_config(command, host->size());
  print_remarks(config, host->rank(), terminal);
  RunState run;
  DevicePlacement place = find_placement(config, std::move(host), run.position);
  run.position.activity = "data";
  const PhaseData data = load_phases(config, *place.comm, run.position, cache);

  Meter meter(command.warm_up, place.comm->rank() == 0, terminal);
  TrainState* state = nullptr;
  TrainHooks hooks;
  hooks.on_step = [&](const StepMetrics& metrics) { meter.step(*state, metrics); };
  CheckpointPlan part;
  if (command.epochs > 0)
    part.more_epochs = command.epochs;
  else
    part.more_steps = command.warm_up + command.steps;
  TrainState s{.config = config,
               .comm = std::move(place.comm),
               .data = data,
               .hooks = hooks,
               .result = run.result,
               .position = run.position,
               .checkpoints = part,
               .ctx = Context(place.device, context_options(config)),
               .ranks_on_device = place.ranks_on_device};
  state = &s;
  Outcome outcome;
  abort_on_error(s, [&] {
    train_through(s);
    outcome = outcome_of(command, s, meter);
  });
  return outcome;
}

}  // namespace dkfac::app::bench
