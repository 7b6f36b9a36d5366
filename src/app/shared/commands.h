#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

namespace dkfac::app {

/// Output streams of a command. `interactive`: out is a terminal, so one line may be overwritten.
struct Terminal {
  std::ostream& out;
  std::ostream& err;
  bool interactive = false;
};

/// Options of 'dkfac train': one run into one folder.
struct TrainCommand {
  std::filesystem::path config;  ///< With resume it may be empty: config.toml of the run folder.
  std::vector<std::string> set;  ///< "section.key=value"
  std::filesystem::path out;     ///< Empty: out/<name>-<date>-<time>.
  int ranks = 1;                 ///< Threads of this process; 1 under mpirun or srun.
  bool resume = false;           ///< Resume a run.
  std::filesystem::path resume_from;  ///< Run folder, or one checkpoint; empty: `out`.
  std::int64_t until_epoch = 0;       ///< Stop after this epoch with a checkpoint; 0: at the end.
  std::int64_t steps = 0;             ///< Stop after so many more steps, likewise; 0: at the end.
  double epochs = 0;                  ///< Or after so many more epochs, which need not be whole.
  bool force = false;                 ///< Overwrite an earlier run in `out`.
  bool quiet = false;                 ///< No progress and no summary.
  std::string command_line;           ///< As typed, for command.txt.
};

enum class CompareOutput : std::uint8_t { table, json, markdown };

/// Options of 'dkfac compare': every configuration with the same seeds, then a table and a report.
/// Runs follow each other seed by seed, so that a slow period of the machine affects all equally.
struct CompareCommand {
  std::vector<std::filesystem::path> configs;
  std::vector<std::filesystem::path> runs;  ///< Folders of finished runs; then nothing is trained.
  std::vector<std::string> set;
  std::filesystem::path out;
  int seeds = 1;                      ///< run.seed, run.seed + 1, ...
  std::optional<double> target;       ///< Test accuracy in (0, 1]; overrides run.target.
  std::optional<double> target_top5;  ///< Likewise run.target_top5.
  std::optional<double> target_loss;  ///< > 0; overrides run.target_loss.
  std::string title;
  int ranks = 1;
  bool force = false;
  bool quiet = false;
  CompareOutput output = CompareOutput::table;  ///< On stdout; json and markdown: no progress.
  std::string command_line;
};

/// Options of 'dkfac info': the build, the configuration keys ("config"), a model, or what a
/// configuration file would do.
struct InfoCommand {
  std::string topic;                     ///< Empty: the build and the machine.
  std::int64_t batch = 1;                ///< Model: images of a training step.
  std::vector<std::int64_t> input = {};  ///< Model: height, width, channels; empty: its default.
  std::int64_t classes = 0;              ///< Model; 0: its default.
  double tflops = 0;  ///< Of the passes of all ranks together, to predict the time; 0: unknown.
  std::vector<std::string> set;
  int ranks = 1;
  bool json = false;  ///< "config": as JSON.
  bool toml = false;  ///< A file: only the whole configuration; reads no data.
};

/// Options of 'dkfac plan': predicted seconds of a step, by optimizer and strategy.
struct PlanCommand {
  std::string topic;                     ///< A model, or a configuration file.
  std::vector<std::string> set = {};     ///< A file: "section.key=value"
  std::int64_t batch = 32;               ///< Model: samples of a rank; a file has its own.
  std::vector<std::int64_t> input = {};  ///< Model: as for InfoCommand.
  std::int64_t classes = 0;
  std::string precision = {};  ///< Model: f32, bf16, f16; empty: f16, or f32 if measured.
  int ranks = 8;
  int per_node = 0;  ///< Ranks of a node; 0: as the device is usually built.
  std::string device = "h100";
  std::vector<std::string> measured = {};  ///< Files of 'dkfac bench --json'; not with `device`.
  double tflops = 0;                       ///< Sustained by the passes of a rank; 0: not known.
  /// GB/s in one direction and microseconds of a rank's links; empty: those of the device.
  std::vector<double> inner = {}, outer = {};
  std::string collectives = {};  ///< "nccl", "direct", "halving"; empty: as the device.
  std::vector<int> intervals = {20, 100};
  double refreshed = 0;   ///< Part of the statistics of a step of the adaptive rule; 0: published.
  double recommend = 0;   ///< What K-FAC may add to a step, as a fraction of it; 0: no advice.
  bool scaling = false;   ///< Also on 1, 2, 4, ... 4,096 ranks.
  std::string json = {};  ///< File to write; "-": instead of the table.
};

/// Options of 'dkfac data': reads every file of a data set and describes it, or packs photographs
/// into files of pixels.
struct DataCommand {
  std::string what;                 ///< Name of a data set, or its folder.
  std::filesystem::path to{};       ///< If set: pack train/ and val/ of `what` into folders there.
  std::filesystem::path mean_to{};  ///< If set: write the mean image of the training set there.
  std::optional<std::int64_t> size{};  ///< Side of the mean image of photographs; unset: 256.
  std::int64_t shorter = 256;
  bool square = false;
  int workers = 0;
};

/// Options of 'dkfac eval': loss and accuracy of a checkpoint on the test data of its run.
struct EvalCommand {
  std::filesystem::path where;   ///< A checkpoint, or a run folder: its newest valid checkpoint.
  std::vector<std::string> set;  ///< Overrides of the configuration of the run.
  int ranks = 1;
  bool json = false;
  bool watch = false;  ///< Evaluate each checkpoint of a run as it appears; `where` is its folder.
  double poll = 5;     ///< Seconds between polls of the folder.
  std::int64_t until_step =
      0;  ///< End with the checkpoint of this step or a later one; 0: with the run.
};

/// Options of 'dkfac predict': the most probable classes of photographs, by a checkpoint.
struct PredictCommand {
  std::filesystem::path where;                ///< As for EvalCommand.
  std::vector<std::filesystem::path> images;  ///< JPEG files.
  std::vector<std::string> set;
  bool json = false;
};

/// Options of 'dkfac ckpt': describes a checkpoint, or exports its network to a separate file.
struct CkptCommand {
  std::filesystem::path where;   ///< As for EvalCommand; a safetensors file can be inspected too.
  std::filesystem::path out;     ///< File to export to; empty: inspect.
  std::string layout = "torch";  ///< Or "native".
  bool raw = false;              ///< Export the raw weights even where the run averages them.
  bool json = false;             ///< Inspect as JSON.
};

/// Runs the command on every rank and returns the exit code. A failure is reported as one line on
/// terminal.err. Under a launcher the failure of a single rank ends the whole job, and the call
/// does not return.
[[nodiscard]] int run(const TrainCommand& command, const Terminal& terminal);
[[nodiscard]] int run(const CompareCommand& command, const Terminal& terminal);
[[nodiscard]] int run(const InfoCommand& command, const Terminal& terminal);
[[nodiscard]] int run(const PlanCommand& command, const Terminal& terminal);
[[nodiscard]] int run(const EvalCommand& command, const Terminal& terminal);
[[nodiscard]] int run(const PredictCommand& command, const Terminal& terminal);
[[nodiscard]] int run(const CkptCommand& command, const Terminal& terminal);
[[nodiscard]] int run(const DataCommand& command, const Terminal& terminal);

/// Occupies the descriptors of closed standard streams with an unusable file, so that no file of a
/// run is opened under such a number and receives printed text. Call it before opening any file.
void keep_standard_files() noexcept;
/// Throws IoError if terminal.out has failed to write anything printed so far.
void check_output(const Terminal& terminal);
/// Returns the exit code of a command that has ended with `code`. If a successful command's output
/// could not be written, reports that failure and returns its code.
[[nodiscard]] int finish_output(int code, const Terminal& terminal);

/// Reports an invalid command line, on rank 0 only, and returns its exit code.
[[nodiscard]] int refuse_command_line(const std::string& what, const Terminal& terminal);

}  // namespace dkfac::app
