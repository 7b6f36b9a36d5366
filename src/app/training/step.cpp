#include <algorithm>

#include <fmt/core.h>

#include "app/run/agreement.h"
#include "app/training/state.h"

namespace dkfac::app {

namespace {

std::string describe_skipped(const StepAgreement& agreement) {
  if (agreement.may_update()) return "no layer has an inverse";
  return fmt::format("non-finite loss on {} ranks, gradient on {}, statistic on {}",
                     agreement.nonfinite_loss, agreement.nonfinite_gradient,
                     agreement.nonfinite_statistic);
}

// Ends the activities of the optimizer. `seconds` is the total time of its calls; the part that it
// does not attribute counts as "update". On a device its parts are host times of enqueueing.
void end_optimizer_activities(TrainState& s, double seconds) {
  const StepSeconds& named = s.report.seconds;
  if (s.activities) return end_activity(s, "update", seconds);
  end_activity(s, "statistics", named.statistics);
  end_activity(s, "exchange", named.exchange);
  end_activity(s, "inverse", named.inverse);
  end_activity(s, "update", seconds - named.statistics - named.exchange - named.inverse);
}

void count(TrainState& s, std::int64_t samples) {
  Counters& c = s.counters;
  const bool scale_lowered = advance(c.loss_scale, loss_scale_options(s.config), s.report);
  s.step_tally = {};
  if (s.report.updated) {
    for (Tally* tally : {&s.step_tally, &c.epoch_tally, &c.window_tally})
      tally->add(loss_of(s.config), s.sums->fetched(), samples);
    c.epoch_tally.top5 += s.sums->fetched_top5();
    c.skipped_in_a_row = 0;
    return;
  }
  ++s.result.skipped_steps;
  if (scale_lowered) return;
  // The images of a rejected step must not be mixed into the next batch. After an overflow of the
  // loss scale the images are valid.
  s.regularizer.previous.global_batch = 0;
  if (++c.skipped_in_a_row < s.config.train.max_skipped_steps) return;
  on_all_ranks(s.position, [&] {
    throw NumericError(fmt::format(
        "[train] {} steps in a row without an update ({}); lower the learning rate, lengthen its "
        "warm-up, or raise optimizer.damping",
        c.skipped_in_a_row, describe_skipped(s.report.agreement)));
  });
}

void count_curvature(TrainState& s) {
  const bool adaptive =
      s.config.optimizer.curvature().refresh.staleness == kfac::Staleness::adaptive;
  add_step(s.result.curvature, s.report, s.statistic_sizes,
           adaptive ? KeepIntervals::yes : KeepIntervals::no);
  for (std::size_t i = 0; i < s.report.inverses.size(); ++i)
    s.counters.inverses.at(i) += s.report.inverses.at(i);
}

}  // namespace

void end_activity(TrainState& s, const char* activity, double seconds) {
  if (s.activities)
    s.activities->mark(s.ctx.stream(), activity);
  else
    s.result.activity_seconds[activity] += std::max(0.0, seconds);
}

bool train_step(TrainState& s, const data::DeviceBatch& batch, double epoch) {
  const Phase& phase = s.now->phase;
  const double lr = learning_rate(phase, epoch);
  s.counters.lr = lr;
  if (has_curvature_schedule(s.config))
    s.optimizer->set_curvature(
        curvature_settings(phase, epoch, s.result.steps, s.result.steps - s.now->first_step));
  s.attachment->set_scale(
      {.loss_scale = s.counters.loss_scale.value, .global_batch = batch.global_batch});
  const double optimizer_seconds = run_passes(s, batch);

  enter(s, "update");
  const Stopwatch watch;
  StepFlags flags;
  flags.loss = s.sums->loss();
  flags.stop = s.hooks.stop_requested && s.hooks.stop_requested();
  const StepArgs args{.lr = lr, .flags = flags, .momentum = momentum(phase, epoch)};
  on_all_ranks(s.position, [&] { s.report = s.optimizer->step(args, s.ctx.stream()); });
  s.position.step = ++s.result.steps;
  if (s.ema) s.ema->after_step(s.result.steps);
  end_optimizer_activities(s, optimizer_seconds + watch.seconds());
  // The agreement on the step has synchronized the host with all earlier work.
  if (s.activities) s.activities->collect(s.result.activity_seconds);
  s.step_images = batch.global_batch;
  s.counters.epoch_samples += batch.global_batch;
  ++s.counters.batch;
  count_curvature(s);
  count(s, batch.labels.numel());
  return s.report.agreement.stop == 0;
}

void gather_inverses(TrainState& s) {
  if (!s.config.optimizer.has_curvature()) return;
  auto& mine = s.counters.inverses;
  s.comm->all_reduce(view_of(mine.data(), {std::ssize(mine)}), comm::ReduceOp::sum, Stream::cpu(),
                     "inverses");
  for (std::size_t i = 0; i < mine.size(); ++i) s.result.curvature.inverses.at(i) += mine.at(i);
  mine = {};
}

void log_step(TrainState& s) {
  const RunConfig& run = s.config.run;
  StepMetrics metrics;
  metrics.epoch = s.counters.epoch;
  metrics.epochs = run.epochs;
  metrics.step = s.result.steps;
  metrics.total_steps = total_steps(s.plan);
  metrics.work_before = work_of(s.plan, s.result.steps - 1);
  metrics.work = work_of(s.plan, s.result.steps);
  metrics.total_work = work_of(s.plan, metrics.total_steps);
  metrics.lr = s.counters.lr;
  metrics.images_per_second =
      static_cast<double>(s.counters.epoch_samples) / s.counters.epoch_seconds;
  metrics.skipped_steps = s.result.skipped_steps;
  metrics.report = s.report;
  if (!s.activities) metrics.exchange_seconds = s.report.seconds.exchange;
  if (!s.result.curvature.empty()) metrics.curvature = &s.result.curvature;
  metrics.layers = s.layers;
  if (s.hooks.on_step) {
    metrics.loss = s.step_tally.mean_loss();
    metrics.accuracy = s.step_tally.accuracy();
    s.hooks.on_step(metrics);
  }
  // Every rank takes part in the sum, whether or not it has hooks.
  if (run.log_interval == 0 || s.result.steps % run.log_interval != 0) return;
  gather_inverses(s);
  const Tally all = sum_over_ranks(s.counters.window_tally, *s.comm);
  s.counters.window_tally = {};
  metrics.loss = all.mean_loss();
  metrics.accuracy = all.accuracy();
  if (s.hooks.on_log) s.hooks.on_log(metrics);
}

}  // namespace dkfac::app
