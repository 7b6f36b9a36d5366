#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "app/shared/commands.h"

namespace dkfac::app {

enum class BenchKind : std::uint8_t {
  step,     ///< Whole training steps, by optimizer, with their phases.
  factors,  ///< Every A and G of a model from one real batch.
  inverse,  ///< The damped inverses of these factors.
  comm,     ///< Collectives over sizes.
  resnet50  ///< Steps of a recipe as it is trained, with its data, on any device.
};

/// One benchmark: warm-up, repetitions, a check of what was computed, one JSON object. docs/
/// benchmarks.md says what each number means.
struct BenchCommand {
  BenchKind kind = BenchKind::step;
  std::string model = "resnet20";
  std::int64_t batch = 128;              ///< Samples of each rank.
  std::vector<std::int64_t> input = {};  ///< Height, width, channels; empty: 32 32 3.
  std::int64_t classes = 10;
  /// In turns, some steps each, so that a slow spell of the machine hits all alike; ratios are to
  /// the first.
  std::vector<std::string> optimizers{"sgd", "kfac"};
  std::string precision = "f32";      ///< As run.precision.
  int steps = 20;                     ///< Measured steps or repetitions.
  int warm_up = 3;                    ///< Before them, not counted.
  int threads = 0;                    ///< Per rank; 0: this rank's share of the cores.
  int ranks = 1;                      ///< Threads of this process; 1 under mpirun or srun.
  std::int64_t max_bytes = 64 << 20;  ///< comm: the largest message.
  std::vector<std::string> set = {};  ///< step: "section.key=value" of a configuration.
  /// step: K-FAC refreshes statistics and inverses at these two intervals while it is measured, so
  /// that a long cycle need not be run. The configured ones still decide in what form inverses are
  /// kept, and how often each kind of step counts in ms_per_step. Empty: as configured.
  std::vector<int> cycle = {};
  /// resnet50: the recipe, and its images; empty: synthetic ones.
  std::filesystem::path config = "configs/imagenet/kfac-16k.toml", data = {};
  std::int64_t image_size = 0, global_batch = 0, micro_batches = 0;  ///< 0: those of the recipe.
  double epochs = 0;  ///< Train this part of an epoch, warm-up included, in place of `steps`.
  std::filesystem::path json = {};  ///< Where the JSON goes; "-": in place of the table.
  std::string command_line = {};    ///< As typed; into the JSON.
};

/// Exit code 80 when what was computed is wrong; the numbers are printed and written all the same.
[[nodiscard]] int run(const BenchCommand& command, const Terminal& terminal);

}  // namespace dkfac::app
