#include "dkfac/app/trainer.h"

#include <algorithm>

#include "app/checkpoint/run_state.h"
#include "app/place.h"
#include "app/training/state.h"

namespace dkfac::app {

namespace {

void train_through(TrainState& state) {
  const Config& config = state.config;
  const CheckpointPlan& checkpoints = state.checkpoints;
  describe_run(state);
  build_training(state);
  if (!checkpoints.resume.empty()) load_checkpoint(state, checkpoints.resume);
  RunResult& result = state.result;
  const std::int64_t until = checkpoints.until_epoch > 0
                                 ? std::min(checkpoints.until_epoch, config.run.epochs)
                                 : config.run.epochs;
  while (result.status == "running" && state.counters.epoch <= until) {
    if (train_epoch(state)) {
      finish_epoch(state);
      const bool last_one = until < config.run.epochs && state.counters.epoch > until;
      if (last_one || checkpoint_due_after_epoch(state)) save_checkpoint(state);
    } else {
      save_checkpoint(state);
      result.status = "stopped";
    }
  }
  if (result.status == "running")
    result.status = state.counters.epoch > config.run.epochs ? "ok" : "stopped";
  result.total_seconds = total_seconds(state);
}

}  // namespace

void train(const Config& config, std::shared_ptr<comm::Communicator> comm,
           const nn::DataSplits& data, const TrainHooks& hooks, RunState& run,
           const CheckpointPlan& checkpoints) {
  train_at(find_place(config, std::move(comm), run.position), config, data, hooks, run,
           checkpoints);
}

void train_at(Place place, const Config& config, const nn::DataSplits& data,
              const TrainHooks& hooks, RunState& run, const CheckpointPlan& checkpoints) {
  TrainState state{.config = config,
                   .comm = std::move(place.comm),
                   .data = data,
                   .hooks = hooks,
                   .result = run.result,
                   .position = run.position,
                   .checkpoints = checkpoints,
                   .ctx = Context(place.device, context_options(config)),
                   .sharers = place.sharers};
  try {
    train_through(state);
  } catch (const RunError& error) {
    // The state may wait for the device when it goes, and the device for ranks that never come. All
    // ranks that fail together still have the line to agree about.
    if (error.scope == RunError::Scope::this_rank) state.comm->abort(error.failure.what);
    throw;
  } catch (...) {
    state.comm->abort(describe_current_exception(state.comm->rank(), run.position).what);
    throw;
  }
}

}  // namespace dkfac::app
