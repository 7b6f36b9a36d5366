#include "app/config_schedules.h"

#include <algorithm>

#include "dkfac/core/error.h"
#include "dkfac/kfac/schedule.h"

namespace dkfac::app {

namespace {

// Linear scaling (Goyal et al. 2017, section 2.1).
double batch_scale(const Config& config) {
  if (config.lr.base_batch == 0) return 1;
  return static_cast<double>(config.train.global_batch) / static_cast<double>(config.lr.base_batch);
}

kfac::PolynomialLr polynomial(const Config& config) {
  const LrConfig& lr = config.lr;
  return {lr.lr, lr.start, lr.end > 0 ? lr.end : static_cast<double>(config.run.epochs), lr.power};
}

double scheduled(const Config& config, double epoch) {
  switch (config.lr.schedule) {
    case LrSchedule::polynomial:
      return polynomial(config).at(epoch);
    case LrSchedule::piecewise:
      return kfac::PiecewiseLinearLr{config.lr.knots}.at(epoch);
    case LrSchedule::constant:
      break;
  }
  return config.lr.lr;
}

void check_lr(const Config& config) {
  if (config.lr.schedule == LrSchedule::piecewise) {
    DKFAC_CHECK(
        !config.lr.knots.empty(),
        "[config] lr.schedule = \"piecewise\" without lr.knots; add e.g. knots = [[0, 0.1], "
        "[10, 0.0]]");
    return;
  }
  if (config.lr.schedule != LrSchedule::polynomial) return;
  const kfac::PolynomialLr schedule = polynomial(config);
  DKFAC_CHECK(schedule.end > schedule.start, "[config] lr.start = ", schedule.start,
              " is not before the end of the decay at epoch ", schedule.end,
              "; lower lr.start or raise lr.end (0 means run.epochs)");
}

void check_damping(const Config& config) {
  const OptimizerConfig& o = config.optimizer;
  if (o.type != OptimizerType::kfac || o.damping_schedule != DampingSchedule::piecewise) return;
  DKFAC_CHECK(!o.damping_knots.empty(),
              "[config] optimizer.damping_schedule = \"piecewise\" without "
              "optimizer.damping_knots; add e.g. damping_knots = [[0, 0.1], [5, 0.001]]");
  for (const auto& [epoch, damping] : o.damping_knots)
    DKFAC_CHECK(damping > 0, "[config] optimizer.damping_knots has ", damping, " at epoch ", epoch,
                "; damping has to be positive");
}

double damping(const Config& config, double epoch, std::int64_t steps) {
  const OptimizerConfig& o = config.optimizer;
  switch (o.damping_schedule) {
    case DampingSchedule::warmup:
      return kfac::DampingWarmup{o.damping_initial, o.curvature.damping, o.damping_warmup_steps}.at(
          steps);
    case DampingSchedule::piecewise:
      if (!o.damping_knots.empty()) return kfac::PiecewiseLinearLr{o.damping_knots}.at(epoch);
      break;
    case DampingSchedule::constant:
      break;
  }
  return o.curvature.damping;
}

}  // namespace

double full_rate(const Config& config) {
  const LrConfig& lr = config.lr;
  if (lr.schedule != LrSchedule::piecewise) return lr.lr * batch_scale(config);
  double highest = 0;
  for (const auto& [epoch, rate] : lr.knots) highest = std::max(highest, rate);
  return highest * batch_scale(config);
}

void check_schedules(const Config& config) {
  check_lr(config);
  check_damping(config);
}

double learning_rate(const Config& config, double epoch) {
  return scheduled(config, epoch) * batch_scale(config) *
         kfac::warmup_factor(epoch, config.lr.warmup_epochs, config.lr.warmup_first);
}

kfac::CurvatureSettings curvature_settings(const Config& config, double epoch, std::int64_t steps) {
  const OptimizerConfig& o = config.optimizer;
  const kfac::CurvatureOptions& c = o.curvature;
  kfac::CurvatureSettings settings{damping(config, epoch, steps), c.statistics_interval,
                                   c.inverse_interval};
  if (o.interval_schedule == IntervalSchedule::ramp) {
    const std::int64_t length = o.interval_ramp_steps;
    settings.statistics_interval =
        kfac::IntervalRamp{o.first_statistics_interval, c.statistics_interval, length}.at(steps);
    settings.inverse_interval =
        kfac::IntervalRamp{o.first_inverse_interval, c.inverse_interval, length}.at(steps);
  }
  return settings;
}

bool has_curvature_schedule(const Config& config) {
  const OptimizerConfig& o = config.optimizer;
  return o.type == OptimizerType::kfac && (o.damping_schedule != DampingSchedule::constant ||
                                           o.interval_schedule != IntervalSchedule::constant);
}

}  // namespace dkfac::app
