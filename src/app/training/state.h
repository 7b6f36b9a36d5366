#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dkfac/comm/communicator.h"
#include "dkfac/core/context.h"
#include "dkfac/core/state.h"
#include "dkfac/core/tensor.h"
#include "dkfac/nn/ema.h"
#include "dkfac/nn/kfac_attach.h"
#include "dkfac/nn/loss.h"
#include "dkfac/nn/model.h"
#include "dkfac/nn/regularize.h"
#include "dkfac/optim/optimizer.h"

#include "app/logging/curvature_totals.h"
#include "app/logging/device_activities.h"
#include "app/logging/stopwatch.h"
#include "app/shared/trainer.h"
#include "app/training/evaluate.h"
#include "app/training/loss_scale.h"
#include "app/training/loss_sums.h"
#include "app/training/phases.h"
#include "data/shared/device_data.h"
#include "nn/shared/graphed_passes.h"

namespace dkfac::app {

/// Position and counters of a run; together with the tensors, the state that a checkpoint saves.
struct Counters {
  std::int64_t epoch = 1;  ///< Current epoch.
  std::int64_t batch = 0;  ///< Finished batches of the current epoch.
  Tally epoch_tally;       ///< Of this rank, in this epoch.
  Tally window_tally;      ///< Of this rank, since the last log line.
  /// Inverses of this rank by stage, since they were last added to the result.
  std::array<double, kfac::kInverseStages> inverses{};
  std::int64_t epoch_samples = 0;  ///< Over all ranks, in this epoch.
  std::int64_t skipped_in_a_row = 0;
  LossScale loss_scale;      ///< For the next step.
  double lr = 0;             ///< Learning rate of the last step.
  double epoch_seconds = 0;  ///< Training time of this epoch so far.
  double total_seconds = 0;  ///< Time of the parts of the run before a restart.
};

/// Identifies the saved state of a run: a step has one state before and one after the evaluation of
/// its epoch.
struct SavedAt {
  std::int64_t step = 0, epoch = 1;
  bool operator==(const SavedAt&) const = default;
};

/// Limit of this part of the run.
struct PartEnd {
  std::int64_t steps = std::numeric_limits<std::int64_t>::max();
  double epochs = std::numeric_limits<double>::infinity();
};

/// State of a training run. The caller sets the first block, build_training() the second.
struct TrainState {
  const Config& config;  ///< For keys that no phase changes; the others are in now->phase.config.
  std::shared_ptr<comm::Communicator> comm;
  const PhaseData& data;
  const TrainHooks& hooks;
  RunResult& result;
  Position& position;
  CheckpointPlan checkpoints = {};
  Context ctx;
  int ranks_on_device = 1;  ///< DevicePlacement::ranks_on_device.

  std::vector<PhasePlan> plan = {};
  const PhasePlan* now = nullptr;         ///< Current phase.
  const PhasePlan* fusions_of = nullptr;  ///< Phase whose fusions have been chosen.
  std::unique_ptr<nn::Model> model = nullptr;
  std::optional<data::DeviceLoader> loader = {}, test_loader = {};
  std::unique_ptr<optim::Optimizer> optimizer = nullptr;
  std::optional<nn::OptimizerAttachment> attachment = {};
  std::optional<DeviceActivities> activities = {};  ///< Timer of ctx.stream(); unset on the host.
  std::optional<TimedObserver> timed = {};
  std::optional<nn::GraphedPasses> graphed = {};  ///< Set on a device, unless switched off.
  /// Of the parts of the run before a restart.
  LaunchCounts launches_before = {}, preconditioning_before = {};
  nn::Regularizer regularizer = {};
  std::optional<nn::Ema> ema = {};                   ///< Set when configured.
  std::vector<std::string> layers = {};              ///< Names by LayerId.
  std::vector<StatisticSizes> statistic_sizes = {};  ///< By LayerId.
  Tensor grad = {};                                  ///< Gradient with respect to the logits.
  Tensor drawn = {};                                 ///< Sampled targets of the Monte-Carlo Fisher.
  std::optional<LossSums> sums = {}, drawn_sums = {};
  std::optional<double> peak_flops = {};  ///< Peak of all ranks' devices; unset: unknown.

  data::LoaderStatistics loading_before = {};  ///< At the start of this epoch or part of it.
  double seconds_before = 0;                   ///< Counters::epoch_seconds at that time.
  Counters counters = {};
  SavedAt saved = {};
  struct {
    const data::DataSplits* of = nullptr;
    data::Normalization value = {};
  } normalization = {};  ///< As checkpoints tell it.
  PartEnd part_end = {};
  bool part_done = false;        ///< RunState::part_done.
  Tally step_tally = {};         ///< Of this rank, in the last step; empty when it was rejected.
  std::int64_t step_images = 0;  ///< Over all ranks, in the last step, accepted or not.
  kfac::StepReport report = {};
  Stopwatch watch = {};
  Profiled profiled = {};
};

/// Implements train() for a state of which the first block is set.
void train_through(TrainState& state);
/// Runs `work` on the state. If it throws, the other ranks are notified before the state is
/// destroyed: its destructor may wait for the device, and the device for ranks that never arrive.
void abort_on_error(TrainState& state, const std::function<void()>& work);
/// Returns whether the limit of this part of the run has been reached.
[[nodiscard]] bool part_is_over(const TrainState& state);

/// Plans the phases, fills in the description in the result, and compares configuration and data
/// over ranks; collective.
void describe_run(TrainState& state);
/// Builds model, loaders and optimizer and connects them; collective.
void build_training(TrainState& state);

/// Returns the samples of a global batch, over all ranks, from which statistics come.
[[nodiscard]] std::int64_t drawn_samples(const Config& config, std::int64_t global_batch,
                                         int ranks);
/// Returns whether training counts samples in the top five; not where mixup mixes labels.
[[nodiscard]] bool counts_top5(const TrainState& state);
/// Runs forward and backward passes on one batch, in the configured number of micro-batches, with a
/// second backward pass from sampled targets for the Monte-Carlo Fisher, or passes of their own
/// over the part of the samples that draws_from_part() is about. Afterwards state.sums holds the
/// fetched sums over this rank's samples. Returns the seconds of the optimizer within.
[[nodiscard]] double run_passes(TrainState& state, const data::DeviceBatch& batch);
/// Runs the passes, the agreement on the step and the update for one batch at a fractional epoch;
/// collective. Returns false when the run is to stop.
[[nodiscard]] bool train_step(TrainState& state, const data::DeviceBatch& batch, double epoch);
/// Reports the step to the hooks; collective on steps that are logged.
void log_step(TrainState& state);
/// Collective: compares the parameters of the ranks, which are equal in every bit after each step,
/// by a CRC-32C of each. Returns the first that differs with the ranks whose bits are not those of
/// most, as a sentence; empty: all are equal.
[[nodiscard]] std::string unlike_weights(Context& ctx, nn::Model& model, comm::Communicator& comm);
/// Compares the weights of the ranks as run.compare_weights says; collective. Where they differ,
/// every rank throws the same RunError.
void compare_weights(TrainState& state);
/// Adds the inversion stage counts of all ranks to the result; collective.
void gather_inverses(TrainState& state);

/// Throws InvalidArgument when some batch of the phase would leave a BatchNorm too few values. The
/// images must have the shape of model.input().
void check_batch_norms(const nn::Model& model, const PhasePlan& plan, int ranks);
/// Throws InvalidArgument when `config` evaluates `test` in batches of shapes that the model does
/// not accept, at which the run would fail after its first epoch. The images must have the shape of
/// model.input().
void check_rectangular(nn::Model& model, const Config& config, const data::Dataset& test);
/// Creates state.loader and test_loader for the current phase.
void make_loaders(TrainState& state);
/// Returns the options of CUDA graphs for the current phase.
[[nodiscard]] nn::GraphedPasses::Options graph_options(const TrainState& state);

/// Rebuilds the parts of the state that depend on the phase if this epoch begins another one;
/// collective.
void enter_phase(TrainState& state, std::int64_t epoch);
/// Trains on the remaining batches of the current epoch. Returns false when the run is to stop.
[[nodiscard]] bool train_epoch(TrainState& state);
/// Test results as configured (with averaged weights or flipped images), and the accuracy without
/// either if one of them is configured.
struct Evaluation {
  Tally tested;
  std::optional<double> plain_accuracy;
};
[[nodiscard]] Evaluation evaluate_epoch(TrainState& state);
/// Averages running statistics over the ranks as evaluate_epoch() does, so that later results do
/// not depend on the epochs that are evaluated.
void pass_evaluation(TrainState& state);
/// Records the loader statistics before the loader starts an epoch or the rest of one.
void begin_loading(TrainState& state);
/// Returns the metrics of loading since begin_loading() over all ranks; nothing without
/// photographs. Collective.
[[nodiscard]] std::optional<LoadingMetrics> gather_loading(TrainState& state);
/// Evaluates as run.eval_every says, adds the epoch to the result and advances to the next epoch;
/// collective.
void finish_epoch(TrainState& state);

/// Visits all state that determines the continuation of the run, except parameters and result.
void visit_state(TrainState& state, StateVisitor& visitor);
/// Visits the state of the weight averages.
void visit_ema(StateVisitor& visitor, nn::Ema& ema);

/// Returns the seconds of this run, including parts before a restart.
[[nodiscard]] inline double total_seconds(const TrainState& state) {
  return state.counters.total_seconds + state.watch.seconds();
}
/// Ends an activity that took `seconds` on the host. On the host these are its time; on a device it
/// is the time of the work enqueued since the last activity.
void end_activity(TrainState& state, const char* activity, double seconds);
/// Begins an activity and ends the previous one; spans of end_activity() lie within.
inline void enter(TrainState& state, const char* activity) {
  state.position.activity = activity;
  state.profiled.enter(activity);
  if (state.hooks.on_activity) state.hooks.on_activity(activity);
}

}  // namespace dkfac::app
