#include <algorithm>
#include <limits>

#include "dkfac/core/device_info.h"

#include "app/logging/run_summary.h"
#include "app/training/run_state.h"
#include "app/training/state.h"

namespace dkfac::app {

namespace {

// Adds the training time since the last call.
void count_time(TrainState& s, Stopwatch& clock) {
  const double passed = clock.lap();
  s.counters.epoch_seconds += passed;
  s.result.train_seconds += passed;
}

LaunchCounts sum_of(const LaunchCounts& before, const LaunchCounts& now) {
  return {before.eager + now.eager, before.captured + now.captured, before.replayed + now.replayed,
          before.refused + now.refused, now.reason.empty() ? before.reason : now.reason};
}

void count_launches(TrainState& s) {
  if (!s.graphed) return;
  s.result.launches = sum_of(s.launches_before, s.graphed->counts());
  const LaunchCounts& now = s.report.preconditioning;
  if (now.eager + now.replayed > 0)
    s.result.preconditioning_launches = sum_of(s.preconditioning_before, now);
}

// Records the fused pairs; an evaluation resets the count of fused statistics.
void count_shared_work(TrainState& s) {
  const auto shared = [](const nn::FusedPairs& p) { return SharedWork{p.pairs, p.fused}; };
  const ModelConfig& model = s.config.model;
  const bool may = s.ctx.device().is_cuda() && size_of(s.model->compute()) == 2;
  const auto told = [&](nn::FusionUse use) {
    return use == nn::FusionUse::on || (may && use == nn::FusionUse::measured);
  };
  if (told(model.fused_moments)) s.result.fused_moments = shared(s.model->fused_moments());
  if (told(model.fused_backward)) s.result.fused_backward = shared(s.model->fused_backward());
}

/// Chooses the measured fusions of this phase as rank 0 measures them; collective.
void choose_fusions(TrainState& s) {
  if (s.fusions_of == s.now) return;
  s.fusions_of = s.now;
  const Config& config = s.now->phase.config;
  const std::int64_t parts = s.comm->size() * config.train.micro_batches;
  const std::int64_t batch = std::min(config.train.global_batch, s.now->data->train.count);
  s.model->choose_fusions(s.ctx, std::max<std::int64_t>(1, batch / parts));
  s.model->set_fusion_choices(comm::all_gather_strings(*s.comm, s.model->fusion_choices()).front());
}

bool comparison_due(const TrainState& s) {
  const std::int64_t every = s.config.run.compare_weights;
  return every > 0 && s.result.steps % every == 0;
}

bool evaluation_due(const RunConfig& run, std::int64_t epoch) {
  return run.eval_every > 0 && (epoch % run.eval_every == 0 || epoch == run.epochs);
}

// Evaluates the current values of the model.
ViewTally evaluate_model(TrainState& s) {
  // Ranks have seen different samples, so their running statistics differ.
  nn::average_buffers(s.ctx, *s.model, *s.comm);
  return evaluate_views(s.ctx, *s.model, *s.test_loader, *s.comm, test_views(s.now->phase.config),
                        loss_of(s.config));
}

void start_next_epoch(Counters& c) {
  ++c.epoch;
  c.batch = 0;
  c.epoch_tally = {};
  c.epoch_samples = 0;
  c.epoch_seconds = 0;
}

}  // namespace

Evaluation evaluate_epoch(TrainState& s) {
  if (!s.ema) {
    const ViewTally now = evaluate_model(s);
    const bool plain = s.config.run.tta == Tta::none;
    return {now.mean, plain ? std::nullopt : std::optional(now.plain.accuracy())};
  }
  nn::average_buffers(s.ctx, *s.model, *s.comm);
  const TestViews view = plain_view(s.now->phase.config);
  const double plain =
      evaluate(s.ctx, *s.model, *s.test_loader, *s.comm, view, loss_of(s.config)).accuracy();
  const nn::WithEma averages(&*s.ema);
  return {evaluate_model(s).mean, plain};
}

void pass_evaluation(TrainState& s) {
  nn::average_buffers(s.ctx, *s.model, *s.comm);
  if (!s.ema) return;
  const nn::WithEma averages(&*s.ema);
  nn::average_buffers(s.ctx, *s.model, *s.comm);
}

bool train_epoch(TrainState& s) {
  const Counters& c = s.counters;
  enter(s, "setup");
  choose_fusions(s);
  enter(s, "data");
  Stopwatch clock, data_watch;
  begin_loading(s);
  s.loader->start_epoch(s.ctx, c.epoch, c.batch);
  data::DeviceBatch batch;
  bool continues = true;
  if (s.activities) s.activities->begin(s.ctx.stream());
  while (continues && s.loader->next(s.ctx, batch)) {
    end_activity(s, "data", data_watch.lap());
    const double at = static_cast<double>(c.epoch - 1) +
                      static_cast<double>(c.batch) / static_cast<double>(s.now->steps_per_epoch);
    continues = train_step(s, batch, at) && !(c.batch < s.now->steps_per_epoch && part_is_over(s));
    count_time(s, clock);
    enter(s, "log");
    log_step(s);
    count_launches(s);
    if (comparison_due(s)) compare_weights(s);
    if (continues && checkpoint_due_in_epoch(s)) {
      save_checkpoint(s);
      clock.lap();  // Excluded from training time.
    }
    if (s.activities) s.activities->begin(s.ctx.stream());  // Logging belongs to no activity.
    enter(s, "data");
    data_watch.lap();
  }
  s.ctx.stream().synchronize();  // The last update.
  count_time(s, clock);
  if (s.activities) s.activities->collect(s.result.activity_seconds);
  count_shared_work(s);
  return continues;
}

void finish_epoch(TrainState& s) {
  enter(s, "evaluation");
  const Counters& c = s.counters;
  RunResult& result = s.result;
  Stopwatch watch;
  gather_inverses(s);
  const std::optional<LoadingMetrics> loading = gather_loading(s);
  const Tally trained = sum_over_ranks(c.epoch_tally, *s.comm);
  const std::optional<Evaluation> evaluation =
      evaluation_due(s.config.run, c.epoch) ? std::optional(evaluate_epoch(s)) : std::nullopt;
  if (!evaluation) pass_evaluation(s);
  s.ctx.stream().synchronize();
  result.activity_seconds["evaluation"] += watch.lap();

  EpochMetrics metrics;
  metrics.epoch = c.epoch;
  metrics.step = result.steps;
  metrics.image_size = s.model->input()[0];
  metrics.global_batch = s.now->phase.config.train.global_batch;
  metrics.lr = c.lr;
  metrics.train_loss = trained.mean_loss();
  metrics.train_accuracy = trained.accuracy();
  if (counts_top5(s)) metrics.train_top5 = top5_accuracy(trained, s.model->outputs());
  metrics.evaluated = evaluation.has_value();
  metrics.test_loss = metrics.test_accuracy = std::numeric_limits<double>::quiet_NaN();
  if (evaluation) {
    const Tally& tested = evaluation->tested;
    metrics.test_loss = tested.mean_loss();
    metrics.test_accuracy = tested.accuracy();
    metrics.test_top5 = top5_accuracy(tested, s.model->outputs(), s.config.run.target_top5);
    metrics.plain_accuracy = evaluation->plain_accuracy;
  }
  metrics.train_seconds = result.train_seconds;
  metrics.images_per_second = static_cast<double>(c.epoch_samples) / c.epoch_seconds;
  metrics.skipped_steps = result.skipped_steps;
  if (s.peak_flops)
    metrics.utilisation = nn::training_flops(*s.model) * metrics.images_per_second / *s.peak_flops;
  if (s.ctx.device().is_cuda())
    metrics.peak_memory = static_cast<double>(device_memory(s.ctx.device()).peak_used);
  metrics.loading = loading;
  add_epoch(result, metrics);
  result.total_seconds = total_seconds(s);
  enter(s, "log");
  if (s.hooks.on_epoch) s.hooks.on_epoch(result);
  start_next_epoch(s.counters);
  enter_phase(s, s.counters.epoch);
}

}  // namespace dkfac::app
