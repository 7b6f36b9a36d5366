#pragma once

#include <cstdint>
#include <filesystem>

namespace dkfac::app {

/// Where a run saves itself and where it goes on. A checkpoint is a folder step-<n> with
/// model.safetensors (parameters and buffers under the names of the model), rank-<r>.safetensors
/// (the rest of what each rank keeps), state.json (position, result so far, configuration) and
/// manifest.json (size and CRC-32C of each file). It is there complete or not at all.
struct CheckpointPlan {
  std::filesystem::path folder = {};  ///< Of all checkpoints of the run; empty: none are saved.
  std::filesystem::path resume = {};  ///< One checkpoint to go on from; empty: a run from scratch.
  /// Where a factor is saved that could not be inverted, unless the configuration says; empty:
  /// nowhere.
  std::filesystem::path failures = {};
  /// Stop after this epoch, with a checkpoint, as if the run had been asked to: schedules are still
  /// those of all epochs. 0: at the end.
  std::int64_t until_epoch = 0;
  /// Likewise after so many steps, or epochs and parts of one, from where it starts or goes on;
  /// with an epoch's last step the epoch is evaluated before. 0: not.
  std::int64_t more_steps = 0;
  double more_epochs = 0;
};

}  // namespace dkfac::app
