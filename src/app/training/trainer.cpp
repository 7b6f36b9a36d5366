#include "app/shared/trainer.h"

#include <algorithm>
#include <cmath>

#include <fmt/core.h>

#include "dkfac/core/error.h"

#include "app/run/agreement.h"
#include "app/run/placement.h"
#include "app/training/phases.h"
#include "app/training/run_state.h"
#include "app/training/state.h"

namespace dkfac::app {

namespace {

/// Returns the finished epochs plus the finished part of the current one.
double epochs_done(const TrainState& s) {
  return static_cast<double>(s.counters.epoch - 1) +
         static_cast<double>(s.counters.batch) / static_cast<double>(s.now->steps_per_epoch);
}

void set_part(TrainState& s) {
  const CheckpointPlan& plan = s.checkpoints;
  if (plan.more_steps > 0) s.part_end.steps = s.result.steps + plan.more_steps;
  if (plan.more_epochs > 0) s.part_end.epochs = epochs_done(s) + plan.more_epochs;
}

/// Calls on_ready; collective.
void report_ready(TrainState& s) {
  enter(s, "folder");
  run_and_agree(*s.comm, s.position, [&] {
    if (s.hooks.on_ready) s.hooks.on_ready();
  });
}

/// Throws for a complete run that trained nothing, or whose network ended with no finite loss.
void check_outcome(const TrainState& s) {
  const RunResult& result = s.result;
  const auto refuse = [&](const std::string& what) {
    on_all_ranks(s.position, [&] {
      throw NumericError("[train] " + what +
                         "; lower the learning rate, lengthen its warm-up, or raise "
                         "optimizer.damping");
    });
  };
  if (result.steps > 0 && result.skipped_steps == result.steps)
    refuse(fmt::format("none of the {} steps made an update", result.steps));
  if (!result.epochs.empty() && result.epochs.back().evaluated &&
      !std::isfinite(result.epochs.back().test_loss))
    refuse(fmt::format("the loss on the test data after epoch {} is not finite",
                       result.epochs.back().epoch));
}

}  // namespace

bool part_is_over(const TrainState& s) {
  // An epoch has fewer than 1e6 steps.
  return s.result.steps >= s.part_end.steps || epochs_done(s) >= s.part_end.epochs - 1e-6;
}

void train_through(TrainState& state) {
  const Config& config = state.config;
  const CheckpointPlan& checkpoints = state.checkpoints;
  describe_run(state);
  build_training(state);
  if (state.plan.size() > 1 && state.hooks.on_plan)
    state.hooks.on_plan(phase_table(state.plan, state.comm->size()));
  if (!checkpoints.resume.empty()) load_checkpoint(state, checkpoints.resume);
  report_ready(state);
  set_part(state);
  RunResult& result = state.result;
  const std::int64_t until = checkpoints.until_epoch > 0
                                 ? std::min(checkpoints.until_epoch, config.run.epochs)
                                 : config.run.epochs;
  const auto until_is_over = [&] {
    return until < config.run.epochs && state.counters.epoch > until;
  };
  state.part_done = until_is_over();
  bool continues = true;
  while (continues && state.counters.epoch <= until) {
    continues = train_epoch(state);
    if (continues) finish_epoch(state);
    state.part_done = until_is_over() || part_is_over(state);
    if (!continues || state.part_done || checkpoint_due_after_epoch(state)) save_checkpoint(state);
    continues = continues && !state.part_done;
  }
  result.status = state.counters.epoch > config.run.epochs ? "ok" : "stopped";
  result.total_seconds = total_seconds(state);
  if (result.status == "ok") check_outcome(state);
}

void abort_on_error(TrainState& state, const std::function<void()>& work) {
  try {
    work();
  } catch (const RunError& error) {
    // Ranks that fail together still have to agree on the error line.
    if (error.scope == RunError::Scope::this_rank) state.comm->abort(error.failure.what);
    throw;
  } catch (...) {
    state.comm->abort(describe_current_exception(state.comm->rank(), state.position).what);
    throw;
  }
}

void train(const Config& config, std::shared_ptr<comm::Communicator> comm, const PhaseData& data,
           const TrainHooks& hooks, RunState& run, const CheckpointPlan& checkpoints) {
  train_at(find_placement(config, std::move(comm), run.position), config, data, hooks, run,
           checkpoints);
}

void train(const Config& config, std::shared_ptr<comm::Communicator> comm,
           const data::DataSplits& data, const TrainHooks& hooks, RunState& run,
           const CheckpointPlan& checkpoints) {
  train(config, std::move(comm), one_for_all(data), hooks, run, checkpoints);
}

void train_at(DevicePlacement place, const Config& config, const PhaseData& data,
              const TrainHooks& hooks, RunState& run, const CheckpointPlan& checkpoints) {
  TrainState state{.config = config,
                   .comm = std::move(place.comm),
                   .data = data,
                   .hooks = hooks,
                   .result = run.result,
                   .position = run.position,
                   .checkpoints = checkpoints,
                   .ctx = Context(place.device, context_options(config)),
                   .ranks_on_device = place.ranks_on_device};
  abort_on_error(state, [&] { train_through(state); });
  run.part_done = state.part_done;
}

}  // namespace dkfac::app
