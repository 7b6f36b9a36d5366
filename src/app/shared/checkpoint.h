#pragma once

#include <cstdint>
#include <filesystem>

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

}  // namespace dkfac::app
