#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dkfac/core/report.h"

namespace dkfac::app {

/// Cost of loading photographs in one training epoch, over all ranks. If the run was resumed within
/// the epoch, it covers the remainder.
struct LoadingMetrics {
  double wait_fraction = 0;  ///< Of the training time, spent waiting for batches; mean over ranks.
  double images = 0;         ///< Images made, including those prefetched.
  /// Seconds of each stage, summed over threads.
  double read_s = 0, decode_s = 0, resize_s = 0, normalise_s = 0;
  /// Damaged photographs found on any rank, each counted once, since the run or its phase was
  /// started or resumed.
  double bad = 0;
  [[nodiscard]] double all_s() const { return read_s + decode_s + resize_s + normalise_s; }
  /// Images per second of one thread in a stage; unset where it took no time.
  [[nodiscard]] std::optional<double> rate(double seconds) const {
    return seconds > 0 ? std::optional(images / seconds) : std::nullopt;
  }
};

/// Results of one epoch of one run. Times exclude evaluation unless stated otherwise.
struct EpochMetrics {
  std::int64_t epoch = 0;         ///< From 1.
  std::int64_t step = 0;          ///< Optimizer steps so far.
  std::int64_t image_size = 0;    ///< Height of the training images; 0 in files of older versions.
  std::int64_t global_batch = 0;  ///< Likewise.
  double lr = 0;                  ///< At the epoch's last step.
  double train_loss = 0;          ///< Mean over the epoch's samples, as seen during training.
  double train_accuracy = 0;      ///< In [0, 1], likewise; NaN without labels.
  /// Top-5 accuracy likewise; unset for ten classes or fewer, and where mixup mixes labels.
  std::optional<double> train_top5;
  /// Whether the test results below are known: run.eval_every leaves epochs out, and "dkfac eval
  /// --watch" adds them later. Until then they are NaN.
  bool evaluated = true;
  double test_loss = 0;
  double test_accuracy = 0;  ///< In [0, 1]; NaN without labels.
  /// Top-5 test accuracy in [0, 1]; unset for ten classes or fewer.
  std::optional<double> test_top5;
  /// Test accuracy of the weights themselves and one view, if averages or several are evaluated.
  std::optional<double> plain_accuracy;
  double train_seconds = 0;        ///< Training time since the start of the run.
  double images_per_second = 0;    ///< Of this epoch's training, over all ranks.
  std::int64_t skipped_steps = 0;  ///< So far.
  /// Model FLOPs utilisation: nn::training_flops() per image over the peak of the devices for the
  /// compute type (peak_flops() of dkfac/core/device_info.h); unset where that is unknown.
  std::optional<double> utilisation;
  /// Peak device memory in bytes of tensors and scratch of rank 0's process; unset on the CPU.
  std::optional<double> peak_memory;
  std::optional<LoadingMetrics> loading;  ///< Set for photographs.
};

/// Test accuracies in [0, 1], and the test loss, that a run is to reach in one epoch: all that are
/// set.
struct Targets {
  std::optional<double> accuracy = {}, top5 = {}, loss = {};
  [[nodiscard]] bool any() const { return accuracy || top5 || loss; }
  [[nodiscard]] bool reached(const EpochMetrics& epoch) const {
    return any() && epoch.evaluated && (!accuracy || epoch.test_accuracy >= *accuracy) &&
           (!top5 || (epoch.test_top5 && *epoch.test_top5 >= *top5)) &&
           (!loss || epoch.test_loss <= *loss);
  }
  bool operator==(const Targets&) const = default;
};

/// Totals of the curvature work of a run; all zero for first-order methods.
struct CurvatureResult {
  /// Elements of the statistics refreshed over all accepted steps, and the number if every step had
  /// refreshed all of them. G comprises the gradient factors and BatchNorm.
  double a_renewed = 0, a_all = 0, g_renewed = 0, g_all = 0;
  double bytes = 0;                             ///< Passed to collectives by rank 0.
  double flops = 0;                             ///< Of statistics and inverses, over all ranks.
  double bytes_skipped = 0, flops_skipped = 0;  ///< Sums of the fields of kfac::StepReport.
  /// Inverses of all ranks by the stage of the robust inversion that produced them
  /// (kfac::InverseStage); the last element counts old inverses that were retained.
  std::array<double, 5> inverses{};
  /// Mean over layers of the steps between two refreshes, by kind; 0 for an absent kind.
  struct Intervals {
    std::int64_t step = 0;
    double a = 0, g = 0, norm = 0;
    bool operator==(const Intervals&) const = default;
  };
  /// Adaptive rule only: one entry per k steps, k a power of two that bounds their number.
  std::vector<Intervals> intervals;

  [[nodiscard]] bool empty() const { return a_all + g_all == 0; }
  /// Fraction of the statistics' elements that were refreshed, and so of their communicated bytes.
  [[nodiscard]] double a_kept() const { return a_all > 0 ? a_renewed / a_all : 1; }
  [[nodiscard]] double g_kept() const { return g_all > 0 ? g_renewed / g_all : 1; }
  /// Fractions saved relative to refreshing everything at every step; 0 if there was no work.
  [[nodiscard]] double bytes_saved() const { return fraction(bytes_skipped, bytes); }
  [[nodiscard]] double flops_saved() const { return fraction(flops_skipped, flops); }

 private:
  static double fraction(double part, double rest) {
    return part + rest > 0 ? part / (part + rest) : 0;
  }
};

/// Fusion of convolutions with their BatchNorm, as of the last training step.
struct SharedWork {
  std::int64_t pairs = 0;  ///< Pairs that could be fused.
  std::int64_t fused = 0;  ///< Fused pairs; the others have no cuDNN engine, or are on the host.
};

/// Result of one run: the content of result.json.
struct RunResult {
  std::string status = "running";  ///< "ok", "failed", "stopped".
  std::string error;               ///< Empty unless failed.
  std::string name;                ///< Label of the configuration, e.g. "kfac".
  std::string optimizer, model, data;
  std::string version;
  std::string configuration;  ///< Effective, as TOML; the report shows it and the differences.
  std::uint64_t seed = 0;
  int ranks = 1;
  std::string device = "cpu";  ///< Device of rank 0, with its name.
  std::int64_t global_batch = 0, parameters = 0, steps = 0, skipped_steps = 0;
  double final_accuracy = 0, best_accuracy = 0;  ///< Over the epochs that were evaluated.
  /// Of the test data, likewise; NaN before the first of them.
  double final_loss = std::numeric_limits<double>::quiet_NaN(), best_loss = final_loss;
  double median_accuracy = 0;  ///< Median over the last five of them (Goyal et al. 2017).
  /// Accuracy of a constant prediction: the fraction of the most frequent class of the test data.
  /// Unset in files of older versions.
  std::optional<double> chance;
  Targets target;
  /// Unset: never reached.
  std::optional<double> epochs_to_target, steps_to_target, seconds_to_target;
  double train_seconds = 0, total_seconds = 0;
  double price_per_hour = 0;  ///< Dollars, of all machines together; 0: unknown.
  /// Returns the price of so many seconds; unset where price or seconds are unknown.
  [[nodiscard]] std::optional<double> dollars(std::optional<double> seconds) const {
    return price_per_hour > 0 && seconds ? std::optional(price_per_hour * *seconds / 3600)
                                         : std::nullopt;
  }
  double images_per_second = 0;  ///< Median over epochs.
  double seconds_per_step = 0;   ///< Median over epochs.
  /// Seconds of data, forward, backward, statistics, exchange, inverse, update and evaluation: host
  /// time, or on a device the time of the network's stream, where exchange and inverse are part of
  /// update.
  std::map<std::string, double> activity_seconds;
  /// Of passes and of preconditioning, over all parts of the run. Set if graphs were requested, the
  /// second with K-FAC alone.
  std::optional<LaunchCounts> launches, preconditioning_launches;
  /// Set if model.fused_moments or model.fused_backward is on, or measured on a device.
  std::optional<SharedWork> fused_moments, fused_backward;
  CurvatureResult curvature;
  std::vector<std::string>
      bad_photos;  ///< First damaged photographs by name, escaped, with reasons.
  std::vector<EpochMetrics> epochs;
};

/// All runs of one configuration, one per seed.
struct RunGroup {
  std::string name;
  std::vector<RunResult> runs;
};

}  // namespace dkfac::app
