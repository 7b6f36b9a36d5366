#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace dkfac::app {

/// What loading photographs took in one epoch of training, over all ranks; where a run went on in
/// the middle of the epoch, in the rest of it.
struct LoadingRecord {
  double wait_share = 0;  ///< Of the training time, spent waiting for batches; mean over ranks.
  double images = 0;      ///< Made, ahead of the network too.
  /// Seconds that threads spent on each stage, added up.
  double read_s = 0, decode_s = 0, resize_s = 0, normalise_s = 0;
  /// Damaged ones that any rank knows of, each counted once, since the run or its phase began or
  /// went on.
  double bad = 0;
  /// Images per second of one thread in a stage; unset where it took no time.
  [[nodiscard]] std::optional<double> rate(double seconds) const {
    return seconds > 0 ? std::optional(images / seconds) : std::nullopt;
  }
};

/// What one epoch of one run gave. Times exclude evaluation unless said otherwise.
struct EpochRecord {
  std::int64_t epoch = 0;         ///< From 1.
  std::int64_t step = 0;          ///< Optimizer steps so far.
  std::int64_t image_size = 0;    ///< Height of the training images; 0 in files of older versions.
  std::int64_t global_batch = 0;  ///< Likewise.
  double lr = 0;                  ///< At the epoch's last step.
  double train_loss = 0;          ///< Mean over the epoch's samples, as seen during training.
  double train_accuracy = 0;      ///< In [0, 1], likewise.
  double test_loss = 0;
  double test_accuracy = 0;  ///< In [0, 1].
  /// In [0, 1], of the label among the five largest logits; unset for ten classes or fewer.
  std::optional<double> test_top5;
  /// Without averaged weights and mirrored images, where the run evaluates with one of them.
  std::optional<double> plain_accuracy;
  double train_seconds = 0;        ///< Training time since the start of the run.
  double images_per_second = 0;    ///< Of this epoch's training, over all ranks.
  std::int64_t skipped_steps = 0;  ///< So far.
  /// Operations of the network, three times those of a forward pass per image, over the peak of the
  /// devices for its type (peak_flops() of dkfac/core/device_info.h); unset where that is unknown.
  std::optional<double> utilisation;
  /// Most bytes of device memory that tensors and scratch of rank 0's process have taken; unset on
  /// the CPU.
  std::optional<double> peak_memory;
  std::optional<LoadingRecord> loading;  ///< Of photographs.
};

/// What became of the curvature in a run; all zero for first-order methods.
struct CurvatureResult {
  /// Elements of the statistics that were renewed, over all accepted steps, and that would have
  /// been at every one of them. G stands for the factors of gradients and for BatchNorm.
  double a_renewed = 0, a_all = 0, g_renewed = 0, g_all = 0;
  double bytes = 0;                             ///< Handed to collectives by rank 0.
  double flops = 0;                             ///< Spent on statistics and inverses, by all ranks.
  double bytes_skipped = 0, flops_skipped = 0;  ///< Sums of kfac::StepReport's.
  /// Inverses of all ranks by the stage of the ladder that gave them (kfac::InverseStage); the last
  /// one counts old inverses that were kept.
  std::array<double, 5> inverses{};
  /// Mean over layers of the steps between two refreshes, by kind; 0 for a kind that is not there.
  struct Intervals {
    std::int64_t step = 0;
    double a = 0, g = 0, batch_norm = 0;
    bool operator==(const Intervals&) const = default;
  };
  /// Under the adaptive rule: of every k-th step, k a power of two that keeps them few.
  std::vector<Intervals> intervals;

  [[nodiscard]] bool empty() const { return a_all + g_all == 0; }
  /// Share of the statistics' elements that were renewed, and so of their bytes on the wire.
  [[nodiscard]] double a_kept() const { return a_all > 0 ? a_renewed / a_all : 1; }
  [[nodiscard]] double g_kept() const { return g_all > 0 ? g_renewed / g_all : 1; }
  /// Shares of what refreshing everything at every step would have sent and computed; 0 of nothing.
  [[nodiscard]] double bytes_saved() const { return share(bytes_skipped, bytes); }
  [[nodiscard]] double flops_saved() const { return share(flops_skipped, flops); }

 private:
  static double share(double part, double rest) {
    return part + rest > 0 ? part / (part + rest) : 0;
  }
};

/// How the passes of steps that record no statistics were given to a device (nn::GraphedPasses), in
/// all parts of the run.
struct PassLaunches {
  std::int64_t as_it_is = 0, recorded = 0, replayed = 0;
  std::int64_t refused = 0;  ///< Could not be recorded.
  std::string reason;        ///< Of the last of them.
};

/// Pairs of a convolution and a BatchNorm that share work, as of the last training step.
struct SharedWork {
  std::int64_t pairs = 0;  ///< That could.
  std::int64_t fused = 0;  ///< That do: the others have no engine of cuDNN, or are on the host.
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
  std::string device = "cpu";  ///< Of rank 0, with its name.
  std::int64_t global_batch = 0, parameters = 0, steps = 0, skipped_steps = 0;
  double final_accuracy = 0, best_accuracy = 0;
  double median_accuracy = 0;  ///< Median over the last five epochs (Goyal et al. 2017).
  std::optional<double> target_accuracy;
  std::optional<double> epochs_to_target, seconds_to_target;  ///< Unset: never reached.
  double train_seconds = 0, total_seconds = 0;
  double images_per_second = 0;  ///< Median over epochs.
  double seconds_per_step = 0;   ///< Median over epochs.
  /// data, forward, backward, statistics, exchange, inverse, update, evaluation: seconds of the
  /// host, or on a device of the stream of the network, where exchange and inverse are a part of
  /// update.
  std::map<std::string, double> phase_seconds;
  std::optional<PassLaunches> launches;  ///< Where graphs were asked for.
  /// Where model.fused_moments, model.fused_backward ask for it.
  std::optional<SharedWork> fused_moments, fused_backward;
  CurvatureResult curvature;
  std::vector<std::string> bad_photos;  ///< The first damaged ones by name, with reasons.
  std::vector<EpochRecord> epochs;
};

/// All runs of one configuration, one per seed.
struct RunGroup {
  std::string name;
  std::vector<RunResult> runs;
};

}  // namespace dkfac::app
