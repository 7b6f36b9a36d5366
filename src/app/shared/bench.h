#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "app/shared/commands.h"

namespace dkfac::app {

enum class BenchKind : std::uint8_t {
  step,     ///< Whole training steps, by optimizer, with their activities.
  factors,  ///< Every A and G of a model from one real batch.
  inverse,  ///< The damped inverses of these factors.
  comm,     ///< Collectives over sizes.
  resnet50  ///< Training steps of a recipe, including its data pipeline, on any device.
};

/// Options of one benchmark: warm-up, repetitions, a check of the computed values, one JSON object.
/// docs/benchmarks.md defines each number.
struct BenchCommand {
  BenchKind kind = BenchKind::step;
  std::string model = "resnet20";
  std::int64_t batch = 128;              ///< Samples per rank.
  std::vector<std::int64_t> input = {};  ///< Height, width, channels; empty: 32 32 3.
  std::int64_t classes = 10;
  /// Measured in turns of a few steps, so that a slow period of the machine affects all equally;
  /// ratios are relative to the first.
  std::vector<std::string> optimizers{"sgd", "kfac"};
  std::string precision = "f32";      ///< As run.precision.
  int steps = 20;                     ///< Measured steps or repetitions.
  int warm_up = 3;                    ///< Steps before the measured ones.
  int threads = 0;                    ///< Per rank; 0: this rank's share of the cores.
  int ranks = 1;                      ///< Threads of this process; 1 under mpirun or srun.
  std::int64_t max_bytes = 64 << 20;  ///< comm: the largest message.
  /// "section.key=value" of a configuration; of comm: run.comm_check, comm_timeout_s, hierarchical.
  std::vector<std::string> set = {};
  /// step: intervals at which K-FAC refreshes statistics and inverses while it is measured, so that
  /// a long cycle need not be run. The configured intervals still decide the form in which inverses
  /// are stored and the weight of each kind of step in ms_per_step. Empty: as configured.
  std::vector<int> cycle = {};
  /// resnet50: the recipe, and its images; empty: synthetic ones.
  std::filesystem::path config = "configs/imagenet/kfac-16k.toml", data = {};
  std::int64_t image_size = 0, global_batch = 0, micro_batches = 0;  ///< 0: as in the recipe.
  double epochs = 0;  ///< Train this part of an epoch, including warm-up, instead of `steps`.
  std::filesystem::path json = {};  ///< File for the JSON; "-": stdout, instead of the table.
  std::string command_line = {};    ///< As typed; recorded in the JSON.
};

/// Runs the benchmark and returns the exit code: 80 when the computed values are wrong, in which
/// case the numbers are still printed and written.
[[nodiscard]] int run(const BenchCommand& command, const Terminal& terminal);

}  // namespace dkfac::app
