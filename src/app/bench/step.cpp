// Benchmark of whole training steps on one constant batch: all work of a run between two batches.
#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <string_view>

#include <fmt/core.h>

#include "dkfac/core/error.h"
#include "dkfac/core/ops.h"
#include "dkfac/kfac/assignment.h"
#include "dkfac/nn/kfac_attach.h"

#include "app/bench/bench.h"
#include "app/bench/measure.h"
#include "app/logging/number_text.h"
#include "app/plan/measured.h"
#include "app/training/state.h"

namespace dkfac::app::bench {

namespace {

using nlohmann::ordered_json;

/// Steps of one optimizer per turn.
constexpr int kTurn = 5;
/// Allowed ratio of the final loss to the first one on the single batch. The loss falls at
/// bench_config's learning rate; a few steps of momentum, decay or reduced precision change it by
/// only a few percent.
constexpr double kLossRoom = 1.1;

/// Leaves out early refreshes, choices of intervals, for which steps are too few: those of --cycle
/// or 1 stand for them; and, so that the intervals of --cycle hold, schedules.
Config without_schedules(Config config, const std::vector<int>& cycle) {
  config = Config(phases_of(config).front().config);  // Steps of the first phase.
  kfac::RefreshOptions& refresh = config.optimizer.options.kfac.curvature.refresh;
  refresh.early_refreshes = false;
  const auto choose = [&](int& interval, std::size_t which) {
    if (interval == 0) interval = cycle.empty() ? 1 : cycle.at(which);
  };
  choose(refresh.statistics_interval, 0);
  choose(refresh.inverse_interval, 1);
  if (cycle.empty()) return config;
  config.optimizer.damping_schedule = DampingSchedule::constant;
  config.optimizer.interval_schedule = IntervalSchedule::constant;
  return config;
}

using ActivityMap = std::map<std::string, double>;

/// Splits K-FAC's time of a step into disjoint parts.
ActivityMap parts_of(const StepSeconds& s) {
  return {{"A", s.statistics_a},
          {"G", s.statistics_g},
          {"batch norm", s.statistics - s.statistics_a - s.statistics_g},
          {"average", s.average},
          {"inverse", s.inverse},
          {"precondition", s.precondition},
          {"exchange", s.exchange}};
}

/// One optimizer with its own network and its measurements.
class Contestant {
 public:
  /// cycle: as in BenchCommand.
  Contestant(Config config, std::shared_ptr<comm::Communicator> comm, const data::DataSplits& data,
             const std::vector<int>& cycle)
      : config_(without_schedules(std::move(config), cycle)),
        data_(one_for_all(data)),
        state_{.config = config_,
               .comm = std::move(comm),
               .data = data_,
               .hooks = hooks_,
               .result = run_.result,
               .position = run_.position,
               .ctx = Context(Device::cpu(), context_options(config_))} {
    describe_run(state_);
    build_training(state_);
    if (!cycle.empty() && config_.optimizer.has_curvature()) {
      kfac::CurvatureSettings settings{.statistics_interval = cycle.at(0),
                                       .inverse_interval = cycle.at(1)};
      if (const double lambda = config_.optimizer.curvature().damping; lambda > 0)
        settings.damping = lambda;  // Not the first one of a schedule.
      state_.optimizer->set_curvature(settings);
    }
    state_.loader->start_epoch(state_.ctx, 1);
    DKFAC_CHECK(state_.loader->next(state_.ctx, batch_), "[bench] no batch of ",
                config_.train.global_batch, " samples; raise --batch");
  }
  Contestant(const Contestant&) = delete;
  Contestant& operator=(const Contestant&) = delete;

  void step(bool measured) {
    const auto before = run_.result.activity_seconds;
    state_.comm->barrier("bench");
    const Stopwatch watch;
    (void)train_step(state_, batch_, 0);
    const double passed = watch.seconds();
    // A rejected step has no loss.
    losses_.push_back(state_.report.updated ? state_.step_tally.mean_loss() : std::nan(""));
    if (!measured) return;
    seconds_.push_back(passed);
    Kind& kind =
        by_kind_[kind_of(state_.report.statistics_refreshed, state_.report.inverses_refreshed)];
    kind.seconds.push_back(passed);
    bytes_ += static_cast<double>(state_.report.bytes);
    ActivityMap parts = parts_of(state_.report.seconds);
    for (const auto& [activity, seconds] : run_.result.activity_seconds) {
      const auto old = before.find(activity);
      const double now = seconds - (old == before.end() ? 0 : old->second);
      activities_[activity] += now;
      if (activity == "forward" || activity == "backward") parts[activity] = now;
      // "update" is the remainder without another name: momentum, decay, rescaling.
      if (activity == "update") parts["update"] = now - parts["average"] - parts["precondition"];
    }
    for (const auto& [part, seconds] : parts) kind.parts[part].push_back(seconds);
  }

  /// Collective: describes what is wrong; empty if nothing is.
  [[nodiscard]] std::string check() {
    for (const double loss : losses_)
      if (!std::isfinite(loss)) return config_.run.name + ": a loss is not finite";
    if (losses_.back() > kLossRoom * losses_.front())
      return fmt::format("{}: the loss of the constant batch rose from {:.4g} to {:.4g}",
                         config_.run.name, losses_.front(), losses_.back());
    return wrong_parameters(state_);
  }

  [[nodiscard]] const kfac::StepReport& report() const { return state_.report; }
  /// Returns the mean time of a step over a whole cycle of intervals, from the medians of the kinds
  /// of steps; if these are missing, the measured mean.
  [[nodiscard]] double seconds_per_step() const;
  [[nodiscard]] ordered_json json(const Roof& roof) const;
  [[nodiscard]] std::string line(double base) const;
  /// Of which refreshes seconds_per_step() is; empty for first-order methods.
  [[nodiscard]] std::string intervals() const;
  [[nodiscard]] const std::string& name() const { return config_.run.name; }
  [[nodiscard]] double images_per_second() const {
    return static_cast<double>(config_.train.global_batch) / seconds_per_step();
  }

 private:
  [[nodiscard]] ordered_json work_options() const;
  [[nodiscard]] ordered_json activity_json() const {
    ordered_json out = ordered_json::object();
    for (const auto& [activity, seconds] : activities_) out[activity] = 1e3 * seconds / steps();
    return out;
  }
  struct Kind {
    std::vector<double> seconds;
    std::map<std::string, std::vector<double>> parts;
  };
  [[nodiscard]] ordered_json parts_json() const {
    ordered_json out = ordered_json::object();
    for (const auto& [name, kind] : by_kind_) {
      out[name] = ordered_json::object();
      for (const auto& [part, seconds] : kind.parts)
        out[name][part] = 1e3 * quartiles_of(seconds).median;
    }
    return out;
  }
  [[nodiscard]] double steps() const { return static_cast<double>(seconds_.size()); }
  [[nodiscard]] std::optional<double> by_intervals() const;

  Config config_;
  PhaseData data_;
  TrainHooks hooks_;
  RunState run_;
  TrainState state_;
  data::DeviceBatch batch_;
  std::vector<double> seconds_, losses_;
  std::map<std::string, Kind> by_kind_;
  ActivityMap activities_;
  double bytes_ = 0;
};

/// Counts the steps of each kind in a whole cycle of the intervals. An inverse is recomputed only
/// when there are new statistics. The first cycle only serves to reach the state at its end.
std::map<std::string, std::int64_t> kinds_of_cycle(std::int64_t statistics, std::int64_t inverses,
                                                   std::int64_t cycle) {
  std::map<std::string, std::int64_t> counts;
  bool stale = false;
  for (std::int64_t i = 0; i < 2 * cycle; ++i) {
    const bool statistic = i % statistics == 0;
    stale = stale || statistic;
    const bool inverse = stale && i % inverses == 0;
    stale = stale && !inverse;
    if (i >= cycle) ++counts[kind_of(statistic, inverse)];
  }
  return counts;
}

std::optional<double> Contestant::by_intervals() const {
  const std::int64_t statistics = config_.optimizer.curvature().refresh.statistics_interval;
  const std::int64_t inverses = config_.optimizer.curvature().refresh.inverse_interval;
  const std::int64_t cycle = std::lcm(statistics, inverses);
  double sum = 0;
  for (const auto& [kind, count] : kinds_of_cycle(statistics, inverses, cycle)) {
    const auto measured = by_kind_.find(kind);
    if (measured == by_kind_.end()) return std::nullopt;
    sum += static_cast<double>(count) * quartiles_of(measured->second.seconds).median;
  }
  return sum / static_cast<double>(cycle);
}

ordered_json Contestant::work_options() const {
  const std::vector<LayerSpec> specs =
      nn::layer_specs(model_options(config_, data_.front()->train, state_.comm->size()),
                      config_.train.global_batch);
  return planning::work_options(
      kfac::with_block_width(optimizer_options(config_).kfac.curvature, specs));
}

double Contestant::seconds_per_step() const {
  const Quartiles q = quartiles_of(seconds_);
  return config_.optimizer.has_curvature() ? by_intervals().value_or(q.mean) : q.median;
}

ordered_json Contestant::json(const Roof& roof) const {
  const double flops =
      nn::training_flops(*state_.model) * static_cast<double>(batch_.images.dim(0));
  ordered_json kinds = ordered_json::object();
  for (const auto& [name, kind] : by_kind_) kinds[name] = to_json(quartiles_of(kind.seconds), 1e3);
  const double network_ms =
      activity_json().value("forward", 0.0) + activity_json().value("backward", 0.0);
  ordered_json out = {{"optimizer", name()},
                      {"ms", to_json(quartiles_of(seconds_), 1e3)},
                      {"ms_by_kind", std::move(kinds)},
                      {"ms_per_step", 1e3 * seconds_per_step()},
                      {"images_per_second", images_per_second()},
                      {"activity_ms", activity_json()},
                      {"parts_ms_by_kind", parts_json()},
                      {"parameters", state_.model->parameter_count()},
                      {"network_flops", flops},
                      {"network_gflops_per_s", 1e-6 * flops / network_ms},
                      {"network_fraction_of_sgemm", 1e-6 * flops / network_ms / roof.gflops},
                      {"bytes_to_collectives", bytes_ / steps()},
                      {"scratch_growths", state_.report.scratch_growths},
                      {"lr", state_.counters.lr},
                      {"loss_first", losses_.front()},
                      {"loss_last", losses_.back()}};
  if (!config_.optimizer.has_curvature()) return out;
  const kfac::RefreshOptions& refresh = config_.optimizer.curvature().refresh;
  out["statistics_interval"] = refresh.statistics_interval;
  out["inverse_interval"] = refresh.inverse_interval;
  out.update(work_options());
  return out;
}

std::string Contestant::intervals() const {
  if (!config_.optimizer.has_curvature()) return {};
  const kfac::RefreshOptions& refresh = config_.optimizer.curvature().refresh;
  return fmt::format("ms/step of {}: statistics every {} and inverses every {} steps\n", name(),
                     refresh.statistics_interval, refresh.inverse_interval);
}

std::string Contestant::line(double base) const {
  const Quartiles q = quartiles_of(seconds_);
  const double step = seconds_per_step();
  std::string out = fmt::format("{:<10} {:>9} {:>9} {:>9} {:>9} {:>9} {:>7}  ", name(),
                                three_digits(1e3 * step), three_digits(1e3 * q.lower),
                                three_digits(1e3 * q.median), three_digits(1e3 * q.upper),
                                three_digits(images_per_second()), three_digits(step / base));
  for (const char* activity :
       {"forward", "backward", "statistics", "exchange", "inverse", "update"}) {
    const auto found = activities_.find(activity);
    out += fmt::format(
        "{:>11}", found == activities_.end() ? "-" : three_digits(1e3 * found->second / steps()));
  }
  return out + "\n";
}

std::string table(const std::vector<std::unique_ptr<Contestant>>& contestants) {
  std::string out = fmt::format("{:<10} {:>9} {:>9} {:>9} {:>9} {:>9} {:>7}  ", "optimizer",
                                "ms/step", "quartile", "median", "quartile", "images/s", "ratio");
  for (const char* activity :
       {"forward", "backward", "statistics", "exchange", "inverse", "update"})
    out += fmt::format("{:>11}", activity);
  out += "\n";
  for (const auto& contestant : contestants)
    out += contestant->line(contestants.front()->seconds_per_step());
  for (const auto& contestant : contestants) out += contestant->intervals();
  return out;
}

double hash_of(ConstTensorView x) {
  const std::string_view bytes(static_cast<const char*>(x.raw()), x.bytes());
  // 53 bits, which a double holds exactly.
  return static_cast<double>(std::hash<std::string_view>{}(bytes) >> 11);
}

}  // namespace

const char* kind_of(bool statistics, bool inverses) {
  if (inverses) return statistics ? "statistics+inverse" : "inverse";
  return statistics ? "statistics" : "plain";
}

std::string wrong_parameters(TrainState& s) {
  Context host;
  const ConstTensorView parameters = s.model->parameters();
  Tensor copy = Tensor::pinned(s.ctx, parameters.shape(), parameters.dtype());
  ops::copy(s.ctx, parameters, copy);
  s.ctx.stream().synchronize();
  float bad = 0;
  ops::count_nonfinite(host, copy, view_of(&bad, {1}));
  if (bad > 0) return s.config.run.name + ": parameters are not finite";
  const double hash = hash_of(copy);
  double extremes[] = {-hash, hash};  // max(-x) = -min(x)
  s.comm->all_reduce(view_of(extremes, {2}), comm::ReduceOp::max, Stream::cpu(), "hash");
  return -extremes[0] == extremes[1] ? "" : s.config.run.name + ": ranks have different parameters";
}

std::vector<double> inverse_seconds(BenchCommand command,
                                    std::shared_ptr<comm::Communicator> comm) {
  command.set.insert(command.set.end(),
                     {"optimizer.statistics_interval=1", "optimizer.inverse_interval=1"});
  const data::DataSplits data = bench_data(command, command.batch * comm->size());
  Contestant kfac(bench_config(command, "kfac", comm->size()), comm, data, {});
  std::vector<double> seconds;
  for (int i = 0; i < command.warm_up + command.steps; ++i) {
    kfac.step(false);
    if (i >= command.warm_up) seconds.push_back(kfac.report().seconds.inverse);
  }
  return seconds;
}

Outcome bench_step(const BenchCommand& command, std::shared_ptr<comm::Communicator> comm,
                   const Roof& roof) {
  const data::DataSplits data = bench_data(command, command.batch * comm->size());
  std::vector<std::unique_ptr<Contestant>> contestants;
  for (const std::string& optimizer : command.optimizers)
    contestants.push_back(std::make_unique<Contestant>(
        bench_config(command, optimizer, comm->size()), comm, data, command.cycle));
  for (const auto& contestant : contestants)
    for (int i = 0; i < command.warm_up; ++i) contestant->step(false);
  for (int done = 0; done < command.steps; done += kTurn) {
    const int turn = std::min(kTurn, command.steps - done);
    for (const auto& contestant : contestants)
      for (int i = 0; i < turn; ++i) contestant->step(true);
  }
  Outcome outcome;
  outcome.json["results"] = ordered_json::array();
  const double base = contestants.front()->seconds_per_step();
  for (const auto& contestant : contestants) {
    if (std::string wrong = contestant->check(); !wrong.empty())
      outcome.wrong.push_back(std::move(wrong));
    ordered_json result = contestant->json(roof);
    result["ratio_to_first"] = contestant->seconds_per_step() / base;
    outcome.json["results"].push_back(std::move(result));
  }
  outcome.text = table(contestants);
  return outcome;
}

}  // namespace dkfac::app::bench
