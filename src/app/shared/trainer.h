#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dkfac/comm/communicator.h"
#include "dkfac/data/dataset.h"
#include "dkfac/kfac/report.h"

#include "app/shared/config.h"
#include "app/shared/errors.h"
#include "app/shared/result.h"

namespace dkfac::app {

/// Where a run saves its checkpoints and what it resumes from. A checkpoint is a folder step-<n>
/// with model.safetensors (parameters and buffers under the names of the model),
/// rank-<r>.safetensors (the remaining state of each rank), state.json (position, result so far,
/// configuration) and manifest.json (size and CRC-32C of each file). It appears atomically.
struct CheckpointPlan {
  std::filesystem::path folder = {};  ///< Folder of all checkpoints of the run; empty: none saved.
  std::filesystem::path resume = {};  ///< Checkpoint to resume from; empty: a run from scratch.
  /// Folder for factors that could not be inverted, unless the configuration names one; empty: they
  /// are not saved.
  std::filesystem::path failures = {};
  /// Stop after this epoch, with a checkpoint, as on a stop request; schedules still span all
  /// epochs. 0: train to the end.
  std::int64_t until_epoch = 0;
  /// Stop likewise after so many steps, or epochs (possibly fractional), counted from the start or
  /// the resumed position. If that step is the last of an epoch, the epoch is evaluated first. 0:
  /// no such limit.
  std::int64_t more_steps = 0;
  double more_epochs = 0;
};

/// Report of the trainer on one step, or on the steps since the last one that was logged.
struct StepMetrics {
  std::int64_t epoch = 0;  ///< From 1.
  std::int64_t epochs = 0;
  std::int64_t step = 0;  ///< From 1.
  std::int64_t total_steps = 0;
  /// Operations of the network (nn::training_flops() per image): before this step, including it,
  /// and in the whole run.
  double work_before = 0, work = 0, total_work = 0;
  double lr = 0;
  double loss = 0;               ///< Mean per sample; NaN when no step was accepted.
  double accuracy = 0;           ///< In [0, 1].
  double images_per_second = 0;  ///< Over all ranks, of this epoch so far.
  std::int64_t skipped_steps = 0;
  /// Seconds of the last step in which this rank waited for communication, packing included. Unset
  /// on a device, where the streams wait.
  std::optional<double> exchange_seconds;
  kfac::StepReport report;  ///< Report of the last step, on this rank.
  /// Totals of the run so far; null for first-order methods. `layers` names report.statistics.
  const CurvatureResult* curvature = nullptr;
  std::span<const std::string> layers;
};

/// Callbacks of train(), called on the rank that sets them; each may be empty. They must not
/// communicate.
struct TrainHooks {
  std::function<void(const StepMetrics&)> on_step;  ///< Each step; loss over this rank's samples.
  std::function<void(const StepMetrics&)> on_log;   ///< Every log_interval steps; over all ranks.
  std::function<void(const RunResult&)> on_epoch;   ///< After the evaluation of each epoch.
  std::function<bool()> stop_requested;             ///< Called before each step.
  /// Called before the first step of a run of several phases, with a table of them.
  std::function<void(const std::string&)> on_plan;
  /// Called once the run is set up and the checkpoint it resumes from is loaded, before the first
  /// step. If it throws, all ranks fail.
  std::function<void()> on_ready;
  /// Called with a description of the weights that model.weights gave, before the first step.
  std::function<void(const std::string&)> on_weights;
  /// Called with a warning, before the first step.
  std::function<void(const std::string&)> on_warning;
  /// Called when an activity of Position begins, which ends the previous one. The argument is a
  /// literal.
  std::function<void(const char*)> on_activity;
};

/// State of a run, kept up to date while training, so that it is valid after an exception too.
struct RunState {
  RunResult result;
  Position position;
  bool part_done = false;  ///< Stopped at a limit of CheckpointPlan, not by a stop request.
};

/// Data of each phase of a configuration (phases_of()); a single element if no phase changes a key
/// of [data].
using PhaseData = std::vector<std::shared_ptr<const data::DataSplits>>;

/// Trains and evaluates `config`; collective. Ends with status "ok", or with "stopped" on every
/// rank after the step in which any rank received a stop request, or at a limit of `checkpoints`.
/// Losses and accuracies are reduced over all ranks and equal on each; seconds are this rank's.
///
/// Saves checkpoints into checkpoints.folder as configured and when the run is stopped. Resumes
/// from checkpoints.resume, bit-identically at the same number of ranks.
///
/// Throws RunError (scope every_rank) when a rank cannot set up, save or load, when ranks disagree
/// about configuration or data, and for numerical failure. Any other failure throws on the rank
/// where it occurs.
void train(const Config& config, std::shared_ptr<comm::Communicator> comm, const PhaseData& data,
           const TrainHooks& hooks, RunState& state, const CheckpointPlan& checkpoints = {});
/// Trains with one data set for all phases.
void train(const Config& config, std::shared_ptr<comm::Communicator> comm,
           const data::DataSplits& data, const TrainHooks& hooks, RunState& state,
           const CheckpointPlan& checkpoints = {});

}  // namespace dkfac::app
