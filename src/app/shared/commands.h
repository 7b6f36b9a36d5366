#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

namespace dkfac::app {

/// Where a command writes. `interactive`: out is a terminal, so one line may be overwritten.
struct Terminal {
  std::ostream& out;
  std::ostream& err;
  bool interactive = false;
};

/// One run into one folder.
struct TrainCommand {
  std::filesystem::path config;  ///< With resume it may be empty: config.toml of the run folder.
  std::vector<std::string> set;  ///< "section.key=value"
  std::filesystem::path out;     ///< Empty: out/<name>-<date>-<time>.
  int ranks = 1;                 ///< Threads of this process; 1 under mpirun or srun.
  bool resume = false;           ///< Go on with a run.
  std::filesystem::path resume_from;  ///< Its folder, or one checkpoint; empty: `out`.
  std::int64_t until_epoch = 0;       ///< Stop after this epoch with a checkpoint; 0: at the end.
  std::int64_t steps = 0;             ///< Stop after so many more steps, likewise; 0: at the end.
  double epochs = 0;                  ///< Or after so many more epochs, which need not be whole.
  bool force = false;                 ///< Overwrite an earlier run in `out`.
  bool quiet = false;                 ///< No progress and no summary.
  std::string command_line;           ///< As typed, for command.txt.
};

enum class CompareOutput : std::uint8_t { table, json, markdown };

/// Every configuration with the same seeds, one run after the other, seed by seed, so that a slow
/// spell of the machine hits all alike; then a table and a report.
struct CompareCommand {
  std::vector<std::filesystem::path> configs;
  std::vector<std::string> set;
  std::filesystem::path out;
  int seeds = 1;                 ///< run.seed, run.seed + 1, ...
  std::optional<double> target;  ///< Test accuracy in (0, 1]; in place of run.target.
  std::string title;
  int ranks = 1;
  bool force = false;
  bool quiet = false;
  CompareOutput output = CompareOutput::table;  ///< Of stdout; the others come without progress.
  std::string command_line;
};

/// Many runs of one configuration with other values, best first; see "dkfac sweep --help".
struct SweepCommand {
  std::filesystem::path spec;    ///< A TOML file.
  std::vector<std::string> set;  ///< Over the settings that all runs share.
  std::filesystem::path out;     ///< Empty: out/<name of the sweep>. One that is there goes on.
  int parallel = 0;              ///< Runs at a time; 0: as the file says.
  bool retry = false;            ///< Start runs that failed before once more.
  bool dry_run = false;          ///< Only say what would run.
  bool force = false;            ///< Overwrite an earlier sweep in `out`.
  bool quiet = false;            ///< No progress.
  std::string command_line;
};

/// What 'dkfac sweep --help' says about the file.
extern const char* const kSweepHelp;

/// About the build, the keys ("config"), a model, or what a configuration file would do.
struct InfoCommand {
  std::string topic;                     ///< Empty: the build and the machine.
  std::int64_t batch = 1;                ///< Of a model: images of a training step.
  std::vector<std::int64_t> input = {};  ///< Of a model: height, width, channels; empty: as usual.
  std::int64_t classes = 0;              ///< Of a model; 0: as usual.
  double tflops = 0;  ///< That all ranks keep up: predicts times of phases; 0: not known.
  std::vector<std::string> set;
  int ranks = 1;
};

/// Reads every file of a data set and says what is in it, or packs photographs into files of
/// pixels.
struct DataCommand {
  std::string what;            ///< Name of a data set, or its folder.
  std::filesystem::path to{};  ///< If set: pack train/ and val/ of `what` into folders there.
  std::int64_t shorter = 256;
  bool square = false;
  int workers = 0;
};

/// Loss and accuracy of a checkpoint on the test data of its run.
struct EvalCommand {
  std::filesystem::path where;   ///< A checkpoint, or the folder of a run: the newest good one.
  std::vector<std::string> set;  ///< Over the configuration of the run.
  int ranks = 1;
  bool json = false;
  bool watch = false;  ///< Evaluate each checkpoint of a run as it appears; `where` is its folder.
  double poll = 5;     ///< Seconds between two looks.
  std::int64_t until_step =
      0;  ///< End with the checkpoint of this step or a later one; 0: the run.
};

/// Says what is in a checkpoint, or writes its network to a file of its own.
struct CkptCommand {
  std::filesystem::path where;   ///< As for EvalCommand; to inspect, a safetensors file too.
  std::filesystem::path out;     ///< File to export to; empty: inspect.
  std::string layout = "torch";  ///< Or "native".
  bool raw = false;   ///< Export the weights themselves, also where the run averages them.
  bool json = false;  ///< Inspect as JSON.
};

/// Each runs the command on every rank and returns the exit code. A failure is one line on
/// terminal.err; under a launcher a failure of one rank alone ends the whole job and never returns.
[[nodiscard]] int run(const TrainCommand& command, const Terminal& terminal);
[[nodiscard]] int run(const CompareCommand& command, const Terminal& terminal);
[[nodiscard]] int run(const SweepCommand& command, const Terminal& terminal);
[[nodiscard]] int run(const InfoCommand& command, const Terminal& terminal);
[[nodiscard]] int run(const EvalCommand& command, const Terminal& terminal);
[[nodiscard]] int run(const CkptCommand& command, const Terminal& terminal);
[[nodiscard]] int run(const DataCommand& command, const Terminal& terminal);

/// Before anything is opened: where a standard file is closed, one that cannot be used takes its
/// number, so that no file of a run gets it, and what is printed with it.
void keep_standard_files() noexcept;
/// Throws IoError unless terminal.out has taken all that was printed so far.
void check_output(const Terminal& terminal);
/// The exit code of a command that has ended with `code`: a good one needs all of its output taken,
/// or the failure is reported here.
[[nodiscard]] int finish_output(int code, const Terminal& terminal);

/// Reports a failure of the command line itself, on rank 0 only, and returns its exit code.
[[nodiscard]] int refuse_command_line(const std::string& what, const Terminal& terminal);

}  // namespace dkfac::app
