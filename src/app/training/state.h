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

#include "app/record/curvature_record.h"
#include "app/record/device_phases.h"
#include "app/record/phase_timer.h"
#include "app/record/profiled.h"
#include "app/shared/checkpoint.h"
#include "app/shared/trainer.h"
#include "app/training/evaluate.h"
#include "app/training/loss_scale.h"
#include "app/training/loss_sums.h"
#include "app/training/phases.h"
#include "data/shared/device_data.h"
#include "nn/shared/graphed_passes.h"

namespace dkfac::app {

/// Where a run stands and what it has counted: with the tensors, all that has to be kept for going
/// on later.
struct Counters {
  std::int64_t epoch = 1;  ///< The one under way.
  std::int64_t batch = 0;  ///< Its batches that are done.
  Tally epoch_tally;       ///< Of this rank, in this epoch.
  Tally window_tally;      ///< Of this rank, since the last log record.
  /// Of this rank, since they were last added to the result.
  std::array<double, kfac::kInverseStages> inverses{};
  std::int64_t epoch_samples = 0;  ///< Over all ranks, in this epoch.
  std::int64_t skipped_in_a_row = 0;
  LossScale loss_scale;      ///< For the next step.
  double lr = 0;             ///< Of the last step.
  double epoch_seconds = 0;  ///< Training time of this epoch until now.
  double total_seconds = 0;  ///< Of the parts of the run that came before a restart.
};

/// Which state of the run has been saved: a step may come before and after its epoch's evaluation.
struct SavedAt {
  std::int64_t step = 0, epoch = 1;
  bool operator==(const SavedAt&) const = default;
};

/// Where this part of the run ends, if not before.
struct PartEnd {
  std::int64_t steps = std::numeric_limits<std::int64_t>::max();
  double epochs = std::numeric_limits<double>::infinity();
};

/// What a run is made of. The first block is given, the second made by build_training().
struct TrainState {
  const Config& config;  ///< Of keys that no phase changes; the others are in now->phase.config.
  std::shared_ptr<comm::Communicator> comm;
  const PhaseData& data;
  const TrainHooks& hooks;
  RunResult& result;
  Position& position;
  CheckpointPlan checkpoints = {};
  Context ctx;
  int ranks_on_device = 1;  ///< DevicePlacement::ranks_on_device.

  std::vector<PhasePlan> plan = {};
  const PhasePlan* now = nullptr;  ///< The phase under way.
  std::unique_ptr<nn::Model> model = nullptr;
  std::optional<data::DeviceLoader> loader = {}, test_loader = {};
  std::unique_ptr<optim::Optimizer> optimizer = nullptr;
  std::optional<nn::OptimizerAttachment> attachment = {};
  std::optional<DevicePhases> phases = {};  ///< Of the stream of ctx; not set on the host.
  std::optional<TimedObserver> timed = {};
  std::optional<nn::GraphedPasses> graphed = {};  ///< Set on a device, unless switched off.
  PassLaunches launches_before = {};              ///< Of the parts that came before a restart.
  nn::Regularizer regularizer = {};
  std::optional<nn::Ema> ema = {};                   ///< Set when the configuration asks for it.
  std::vector<std::string> layers = {};              ///< Names by LayerId.
  std::vector<StatisticSizes> statistic_sizes = {};  ///< Likewise.
  Tensor grad = {};                                  ///< Of the logits.
  Tensor drawn = {};                                 ///< Labels of the Monte-Carlo Fisher.
  std::optional<LossSums> sums = {}, drawn_sums = {};
  std::optional<double> peak_flops = {};  ///< Of all ranks' devices; unset: not known.

  data::LoaderStatistics loading_before = {};  ///< When this epoch, or this part of it, began,
  double seconds_before = 0;                   ///< and Counters::epoch_seconds.
  Counters counters = {};
  SavedAt saved = {};
  PartEnd part_end = {};
  bool part_done = false;        ///< RunState::part_done.
  Tally step_tally = {};         ///< Of this rank, in the last step; empty when it did not count.
  std::int64_t step_images = 0;  ///< Over all ranks, in the last step, whether it counted or not.
  kfac::StepReport report = {};
  Stopwatch watch = {};
  Profiled profiled = {};
};

/// All of a run, in a state of which the first block is given: what train() does.
void train_through(TrainState& state);
/// Does the work on the state. When it throws, the other ranks are told before the state goes: it
/// may wait for the device when it does, and the device for ranks that never come.
void abort_on_error(TrainState& state, const std::function<void()>& work);
/// Whether the steps or epochs of this part are done.
[[nodiscard]] bool part_is_over(const TrainState& state);

/// Plans the phases, fills in the result's description and compares configuration and data over
/// ranks; collective.
void describe_run(TrainState& state);
/// Model, loaders, optimizer, and their ties; collective.
void build_training(TrainState& state);

/// Forward and backward on one batch, in as many parts as the configuration says; with a second
/// backward pass from drawn labels where the Fisher is a Monte-Carlo one. state.sums has what they
/// add up to over this rank's samples, fetched. Returns the seconds that the optimizer took inside.
[[nodiscard]] double run_passes(TrainState& state, const data::DeviceBatch& batch);
/// Passes, vote and update on one batch at a fractional epoch; collective. False when the run is to
/// stop.
[[nodiscard]] bool train_step(TrainState& state, const data::DeviceBatch& batch, double epoch);
/// Tells the hooks about the step; collective on steps that are logged.
void record_step(TrainState& state);
/// Adds the ladder's counts of all ranks to the result; collective.
void gather_inverses(TrainState& state);

/// Makes what depends on the phase of this epoch, unless it is the one under way; collective.
void enter_phase(TrainState& state, std::int64_t epoch);
/// The batches of the current epoch that are still to do. False when the run is to stop.
[[nodiscard]] bool train_epoch(TrainState& state);
/// Test loss and accuracy of what the configuration asks for (averaged weights, mirrored images),
/// and the accuracy without either where it asks for one of them; collective.
struct Evaluation {
  Tally tested;
  std::optional<double> plain_accuracy;
};
[[nodiscard]] Evaluation evaluate_epoch(TrainState& state);
/// Before the loader begins an epoch, or what is left of one.
void begin_loading(TrainState& state);
/// What has been loaded since, over all ranks; nothing without photographs. Collective.
[[nodiscard]] std::optional<LoadingRecord> gather_loading(TrainState& state);
/// Evaluates, adds the epoch to the result and goes to the next; collective.
void finish_epoch(TrainState& state);

/// Goes over everything but parameters and result that decides how the run goes on.
void visit_state(TrainState& state, StateVisitor& visitor);
/// The averages' part of it.
void visit_ema(StateVisitor& visitor, nn::Ema& ema);

/// Seconds of this run, earlier parts included.
[[nodiscard]] inline double total_seconds(const TrainState& state) {
  return state.counters.total_seconds + state.watch.seconds();
}
/// A phase that took the host that many seconds is over: on the host they are its time, on a device
/// that of the work that it has been given since the last phase.
void end_phase(TrainState& state, const char* phase, double seconds);
/// Phases follow each other; spans of end_phase() lie inside of them.
inline void enter(TrainState& state, const char* phase) {
  state.position.phase = phase;
  state.profiled.enter(phase);
  if (state.hooks.on_phase) state.hooks.on_phase(phase);
}

}  // namespace dkfac::app
