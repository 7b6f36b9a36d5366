#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dkfac/comm/communicator.h"
#include "dkfac/data/dataset.h"
#include "dkfac/kfac/report.h"

#include "app/shared/checkpoint.h"
#include "app/shared/config.h"
#include "app/shared/errors.h"
#include "app/shared/result.h"

namespace dkfac::app {

/// What the trainer tells about a step, or about the steps since the last record.
struct StepRecord {
  std::int64_t epoch = 0;  ///< From 1.
  std::int64_t epochs = 0;
  std::int64_t step = 0;  ///< From 1.
  std::int64_t total_steps = 0;
  /// Operations of the network (three forward passes per image) in the steps before this one, with
  /// it, and in all.
  double work_before = 0, work = 0, total_work = 0;
  double lr = 0;
  double loss = 0;               ///< Mean per sample; a NaN when no step counted.
  double accuracy = 0;           ///< In [0, 1].
  double images_per_second = 0;  ///< Over all ranks, of this epoch so far.
  std::int64_t skipped_steps = 0;
  kfac::StepReport report;  ///< Of the last step, on this rank.
  /// Of the run so far; null for first-order methods. The names go with report.statistics.
  const CurvatureResult* curvature = nullptr;
  std::span<const std::string> layers;
};

/// Called on the rank that sets them; empty ones are left out. They must not communicate.
struct TrainHooks {
  std::function<void(const StepRecord&)> on_step;  ///< Each step; loss of this rank's samples.
  std::function<void(const StepRecord&)> on_log;   ///< Every log_interval steps; of all ranks.
  std::function<void(const RunResult&)> on_epoch;  ///< After the evaluation of each epoch.
  std::function<bool()> stop_requested;            ///< Asked before each step.
  /// Before the first step of a run of several phases: a table of them.
  std::function<void(const std::string&)> on_plan;
  /// A phase begins, and with it the one before ends: a literal, as in Position.
  std::function<void(const char*)> on_phase;
};

/// Kept up to date while training, so that it is worth something after an exception too.
struct RunState {
  RunResult result;
  Position position;
  bool part_done = false;  ///< Stopped where CheckpointPlan says, and not since somebody asked.
};

/// Data of each phase of a configuration (phases_of()), or one for all where no phase changes a key
/// of [data].
using PhaseData = std::vector<std::shared_ptr<const data::DataSplits>>;

/// Trains and evaluates as `config` says; collective. Ends with status "ok", or "stopped" on every
/// rank after the step in which some rank was asked to stop, or where `checkpoints` says. Sums
/// over samples go over all ranks, so every rank ends with the same losses and accuracies; seconds
/// are this rank's.
///
/// Saves as `config` says into checkpoints.folder, and when it is stopped; goes on from
/// checkpoints.resume, with the same bits at the same number of ranks.
///
/// Throws RunError (scope every_rank) when a rank cannot set up, save or load, when ranks disagree
/// about configuration or data, and for numerical failure; whatever else fails throws where it
/// happens.
void train(const Config& config, std::shared_ptr<comm::Communicator> comm, const PhaseData& data,
           const TrainHooks& hooks, RunState& state, const CheckpointPlan& checkpoints = {});
/// The same with one data set for all phases.
void train(const Config& config, std::shared_ptr<comm::Communicator> comm,
           const data::DataSplits& data, const TrainHooks& hooks, RunState& state,
           const CheckpointPlan& checkpoints = {});

}  // namespace dkfac::app
