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

/// Data sets by configuration, read once per process and shared by its ranks and runs.
class DataCache {
 public:
  /// The held-out split applied. Throws what data::load_data throws, InvalidArgument for data that
  /// there is no memory for, and RunError (code try_again) once a signal has come.
  [[nodiscard]] std::shared_ptr<const data::DataSplits> get(const Config& config);

 private:
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<const data::DataSplits>> sets_;
};

/// Of each phase of the configuration; collective. Of image folders rank 0 reads first: it keeps
/// what it finds out of all photographs beside them, and the others find it there.
[[nodiscard]] PhaseData load_phases(const Config& config, comm::Communicator& comm,
                                    const Position& position, DataCache& cache);

/// One run of one configuration and where it goes.
struct RunPlan {
  Config config;
  std::filesystem::path folder = {};
  IfExists if_exists = IfExists::refuse;
  std::string label = {};  ///< For progress.
  std::string command_line = {};
  bool quiet = false;
  bool checkpoints = false;  ///< Save as the configuration says, and when stopped.
  /// Go on from this checkpoint, or from the newest good one of this run folder.
  std::optional<std::filesystem::path> resume = {};
  /// As in CheckpointPlan.
  std::int64_t until_epoch = 0, more_steps = 0;
  double more_epochs = 0;
};

/// How a run ended that did not fail.
struct RunEnd {
  bool as_planned = false;  ///< It went as far as planned; false: it was stopped.
  std::filesystem::path folder;
};

/// Collective: trains, with rank 0 showing progress and writing the folder, after a failure too.
/// Throws RunError and nothing else; `result` then holds what there was before it.
RunEnd run_one(const RunPlan& plan, std::shared_ptr<comm::Communicator> comm, DataCache& cache,
               const Terminal& terminal, RunResult& result);

/// What a command throws on every rank once a signal has stopped it. `where`: folder with results;
/// advice: how to go on.
[[noreturn]] void throw_stopped(std::int64_t step, const std::filesystem::path& where,
                                const std::string& advice);

}  // namespace dkfac::app
