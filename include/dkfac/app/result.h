#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace dkfac::app {

/// What one epoch of one run gave. Times exclude evaluation unless said otherwise.
struct EpochRecord {
  std::int64_t epoch = 0;     ///< From 1.
  std::int64_t step = 0;      ///< Optimizer steps so far.
  double lr = 0;              ///< At the epoch's last step.
  double train_loss = 0;      ///< Mean over the epoch's samples, as seen during training.
  double train_accuracy = 0;  ///< In [0, 1], likewise.
  double test_loss = 0;
  double test_accuracy = 0;  ///< In [0, 1].
  /// Without averaged weights and mirrored images, where the run evaluates with one of them.
  std::optional<double> plain_accuracy;
  double train_seconds = 0;        ///< Training time since the start of the run.
  double images_per_second = 0;    ///< Of this epoch's training, over all ranks.
  std::int64_t skipped_steps = 0;  ///< So far.
};

/// One finished (or failed) run: the content of result.json.
struct RunResult {
  std::string status = "running";  ///< "ok", "failed", "stopped".
  std::string error;               ///< Empty unless failed.
  std::string name;                ///< Label of the configuration, e.g. "kfac".
  std::string optimizer, model, data;
  std::string version;
  std::string configuration;  ///< Effective, as TOML; the report shows it and where groups differ.
  std::uint64_t seed = 0;
  int ranks = 1;
  std::int64_t global_batch = 0, parameters = 0, steps = 0, skipped_steps = 0;
  double final_accuracy = 0, best_accuracy = 0;
  double median_accuracy = 0;  ///< Median over the last five epochs (Goyal et al. 2017).
  std::optional<double> target_accuracy;
  std::optional<double> epochs_to_target, seconds_to_target;  ///< Unset: never reached.
  double train_seconds = 0, total_seconds = 0;
  double images_per_second = 0;  ///< Median over epochs.
  double seconds_per_step = 0;   ///< Median over epochs.
  /// data, forward, backward, statistics, exchange, inverse, update, evaluation.
  std::map<std::string, double> phase_seconds;
  std::vector<EpochRecord> epochs;
};

/// All runs of one configuration, one per seed.
struct RunGroup {
  std::string name;
  std::vector<RunResult> runs;
};

}  // namespace dkfac::app
