#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "dkfac/comm/communicator.h"
#include "dkfac/data/dataset.h"

#include "app/run/run_folder.h"
#include "app/shared/commands.h"
#include "app/shared/config.h"
#include "app/shared/errors.h"
#include "app/shared/result.h"
#include "app/shared/trainer.h"

namespace dkfac::app {

/// Cache of data sets by configuration, shared by the ranks and runs of a process.
class DataCache {
 public:
  /// Returns the data set with the held-out split applied. Throws as data::load_data,
  /// InvalidArgument for data that does not fit into memory, and RunError (code try_again) after a
  /// signal.
  [[nodiscard]] std::shared_ptr<const data::DataSplits> get(const Config& config);
  /// Returns the remarks on the data read since the last call, so that each is shown once.
  [[nodiscard]] std::vector<std::string> take_remarks();

 private:
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<const data::DataSplits>> sets_;
  std::vector<std::string> remarks_;
};

/// Loads the data of each phase of the configuration; collective. Rank 0 reads image folders first
/// and writes the cache files beside them, which the others use.
[[nodiscard]] PhaseData load_phases(const Config& config, comm::Communicator& comm,
                                    const Position& position, DataCache& cache);

/// Plan of one run: configuration, folder and options.
struct RunPlan {
  Config config;
  std::filesystem::path folder = {};
  IfExists if_exists = IfExists::refuse;
  std::string label = {};  ///< Label of progress lines.
  std::string command_line = {};
  bool quiet = false;
  bool checkpoints = false;  ///< Save checkpoints as configured, and when stopped.
  /// Resume from this checkpoint, or from the newest valid one of this run folder.
  std::optional<std::filesystem::path> resume = {};
  /// As in CheckpointPlan.
  std::int64_t until_epoch = 0, more_steps = 0;
  double more_epochs = 0;
};

/// End of a run that did not fail.
struct RunEnd {
  bool as_planned = false;  ///< It was completed as planned; false: it was stopped.
  std::filesystem::path folder;
};

/// Collective: trains; rank 0 shows progress and writes the folder, even after a failure. Throws
/// only RunError; `result` then holds the results until the failure.
RunEnd run_one(const RunPlan& plan, std::shared_ptr<comm::Communicator> comm, DataCache& cache,
               const Terminal& terminal, RunResult& result);

/// Throws the RunError of a command that was stopped by a signal; call it on every rank. `where` is
/// the folder with results, `advice` describes how to resume.
[[noreturn]] void throw_stopped(std::int64_t step, const std::filesystem::path& where,
                                const std::string& advice);

}  // namespace dkfac::app
