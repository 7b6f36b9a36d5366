#include <algorithm>
#include <cmath>

#include "dkfac/core/error.h"
#include "dkfac/kfac/schedule.h"
#include "dkfac/optim/lr_schedule.h"

#include "app/config/use.h"
#include "app/shared/phases.h"

namespace dkfac::app {

namespace {

/// The epoch that a schedule counts: of the run, or of the phase that gives it.
double clock_of(const Phase& phase, bool own, double epoch) {
  return own ? epoch - static_cast<double>(phase.first_epoch - 1) : epoch;
}

// Linear scaling (Goyal et al. 2017, section 2.1), or by the root (Krizhevsky 2014, section 5).
double batch_scale(const Config& config) {
  if (config.lr.base_batch == 0) return 1;
  const double times =
      static_cast<double>(config.train.global_batch) / static_cast<double>(config.lr.base_batch);
  return config.lr.batch_scaling == BatchScaling::sqrt ? std::sqrt(times) : times;
}

double end_of(const Config& config) {
  return config.lr.end > 0 ? config.lr.end : static_cast<double>(config.run.epochs);
}

bool decays(const LrConfig& lr) {
  return lr.schedule == LrSchedule::polynomial || lr.schedule == LrSchedule::cosine;
}

bool has_knots(const LrConfig& lr) {
  return lr.schedule == LrSchedule::piecewise || lr.schedule == LrSchedule::step;
}

double scheduled(const Config& config, double epoch) {
  const LrConfig& lr = config.lr;
  switch (lr.schedule) {
    case LrSchedule::polynomial:
      return optim::PolynomialLr{lr.lr, lr.start, end_of(config), lr.power, lr.last}.at(epoch);
    case LrSchedule::cosine:
      return optim::CosineLr{lr.lr, lr.last, lr.start, end_of(config)}.at(epoch);
    case LrSchedule::piecewise:
      return optim::PiecewiseLinearLr{lr.knots}.at(epoch);
    case LrSchedule::step:
      return optim::StepLr{lr.knots}.at(epoch);
    case LrSchedule::constant:
      break;
  }
  return lr.lr;
}

double damping(const Phase& phase, double epoch, std::int64_t steps, std::int64_t phase_steps) {
  const OptimizerConfig& o = phase.config.optimizer;
  switch (o.damping_schedule) {
    case DampingSchedule::warmup:
      return kfac::DampingWarmup{o.damping_initial, o.curvature().damping, o.damping_warmup_steps}
          .at(phase.own.damping ? phase_steps : steps);
    case DampingSchedule::piecewise:
      if (!o.damping_knots.empty())
        return optim::PiecewiseLinearLr{o.damping_knots}.at(
            clock_of(phase, phase.own.damping, epoch));
      break;
    case DampingSchedule::constant:
      break;
  }
  return o.curvature().damping;
}

void check_lr(const Config& config) {
  const LrConfig& lr = config.lr;
  DKFAC_CHECK(!has_knots(lr) || !lr.knots.empty(), "[config] lr.schedule = \"",
              lr.schedule == LrSchedule::step ? "step" : "piecewise",
              "\" without lr.knots; add e.g. knots = [[0, 0.1], [10, 0.0]]");
  DKFAC_CHECK(!decays(lr) || end_of(config) > lr.start, "[config] lr.start = ", lr.start,
              " is not before the end of the decay at epoch ", end_of(config),
              "; lower lr.start or raise lr.end (0 means run.epochs)");
  DKFAC_CHECK(lr.base_batch > 0 || lr.batch_scaling == BatchScaling::linear,
              "[config] lr.batch_scaling = \"sqrt\" has no effect with lr.base_batch = 0; set "
              "lr.base_batch to the batch that the rates are for, or leave lr.batch_scaling out");
}

void check_momentum(const Config& config) {
  const OptimizerConfig& o = config.optimizer;
  if (o.momentum_schedule == MomentumSchedule::constant) return;
  DKFAC_CHECK(!o.momentum_knots.empty(),
              "[config] optimizer.momentum_schedule = \"piecewise\" without "
              "optimizer.momentum_knots; add e.g. momentum_knots = [[0, 0.9], [10, 0.95]]");
  for (const auto& [epoch, value] : o.momentum_knots)
    DKFAC_CHECK(value < 1, "[config] optimizer.momentum_knots has ", value, " at epoch ", epoch,
                "; a momentum has to be below 1");
}

void check_damping(const Config& config) {
  const OptimizerConfig& o = config.optimizer;
  if (!o.has_curvature() || o.damping_schedule == DampingSchedule::constant) return;
  DKFAC_CHECK(o.curvature().damping > 0, "[config] optimizer.damping_schedule = \"",
              o.damping_schedule == DampingSchedule::warmup ? "warmup" : "piecewise",
              "\" changes an absolute lambda, and optimizer.damping = 0 leaves lambda to "
              "optimizer.relative_damping; set optimizer.damping to a number above 0");
  if (o.damping_schedule != DampingSchedule::piecewise) return;
  DKFAC_CHECK(!o.damping_knots.empty(),
              "[config] optimizer.damping_schedule = \"piecewise\" without "
              "optimizer.damping_knots; add e.g. damping_knots = [[0, 0.1], [5, 0.001]]");
  for (const auto& [epoch, damping] : o.damping_knots)
    DKFAC_CHECK(damping > 0, "[config] optimizer.damping_knots has ", damping, " at epoch ", epoch,
                "; damping has to be positive");
}

double highest_rate(const Config& config) {
  const LrConfig& lr = config.lr;
  double highest = decays(lr) ? std::max(lr.lr, lr.last) : lr.lr;
  if (has_knots(lr)) {
    highest = 0;
    for (const auto& [epoch, rate] : lr.knots) highest = std::max(highest, rate);
  }
  return highest * batch_scale(config);
}

}  // namespace

double full_rate(const Config& config) {
  double highest = 0;
  for (const Phase& phase : phases_of(config))
    highest = std::max(highest, highest_rate(phase.config));
  return highest;
}

double lowest_damping(const Config& config) {
  const OptimizerConfig& o = config.optimizer;
  const double last = o.curvature().damping;
  switch (o.damping_schedule) {
    case DampingSchedule::warmup:
      return std::min(o.damping_initial, last);
    case DampingSchedule::piecewise:
      return std::ranges::min(o.damping_knots, {}, [](const auto& knot) { return knot.second; })
          .second;
    case DampingSchedule::constant:
      break;
  }
  return last;
}

void check_schedules(const Config& config) {
  check_lr(config);
  DKFAC_CHECK(std::isfinite(highest_rate(config)),
              "[config] lr.lr or a rate of lr.knots is not "
              "finite when multiplied by train.global_batch / lr.base_batch = ",
              batch_scale(config), "; lower it");
  check_momentum(config);
  check_damping(config);
}

double learning_rate(const Phase& phase, double epoch) {
  const Config& config = phase.config;
  return scheduled(config, clock_of(phase, phase.own.lr, epoch)) * batch_scale(config) *
         optim::warmup_factor(clock_of(phase, phase.own.warmup, epoch), config.lr.warmup_epochs,
                              config.lr.warmup_first);
}

double momentum(const Phase& phase, double epoch) {
  const OptimizerConfig& o = phase.config.optimizer;
  if (o.momentum_schedule == MomentumSchedule::constant) return o.momentum();
  return optim::PiecewiseLinearLr{o.momentum_knots}.at(clock_of(phase, phase.own.momentum, epoch));
}

kfac::CurvatureSettings curvature_settings(const Phase& phase, double epoch, std::int64_t steps,
                                           std::int64_t phase_steps) {
  const OptimizerConfig& o = phase.config.optimizer;
  const kfac::CurvatureOptions& c = o.curvature();
  // Intervals that are chosen stay as they are: to name them asks for another choice.
  const auto given = [](int interval) {
    return interval > 0 ? std::optional(interval) : std::nullopt;
  };
  kfac::CurvatureSettings settings{.statistics_interval = given(c.refresh.statistics_interval),
                                   .inverse_interval = given(c.refresh.inverse_interval)};
  if (const double lambda = damping(phase, epoch, steps, phase_steps); lambda > 0)
    settings.damping = lambda;
  else
    settings.relative_damping = c.relative_damping;
  if (o.interval_schedule == IntervalSchedule::ramp) {
    const std::int64_t length = o.interval_ramp_steps,
                       at = phase.own.intervals ? phase_steps : steps;
    settings.statistics_interval =
        kfac::IntervalRamp{o.first_statistics_interval, c.refresh.statistics_interval, length}.at(
            at);
    settings.inverse_interval =
        kfac::IntervalRamp{o.first_inverse_interval, c.refresh.inverse_interval, length}.at(at);
  }
  settings.micro_batches = static_cast<int>(phase.config.train.micro_batches);
  return settings;
}

bool has_curvature_schedule(const Config& config) {
  const OptimizerConfig& o = config.optimizer;
  return o.has_curvature() &&
         (!config.phases.empty() || o.damping_schedule != DampingSchedule::constant ||
          o.interval_schedule != IntervalSchedule::constant);
}

}  // namespace dkfac::app
