#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "app/shared/commands.h"
#include "app/sweep/process.h"
#include "app/sweep/state.h"

namespace dkfac::app {

/// The words that start or go on with a run, up to the end of epoch `until` (0: to its own end).
/// `go_on`: there is a checkpoint in its folder.
[[nodiscard]] std::vector<std::string> command_of(const SweepSpec& spec, const SweepRun& run,
                                                  const std::filesystem::path& folder, int slot,
                                                  std::int64_t until, bool go_on);
/// Variables for every run: how many threads it may have, where nobody has said.
[[nodiscard]] std::map<std::string, std::string> environment_of(const Slots& slots);

/// Runs what is left of a sweep in its folder: a folder of each run, logs/<run>.log of what they
/// print, and sweep.json after every change.
class SweepRunner {
 public:
  SweepRunner(SweepState& state, std::filesystem::path folder, const Terminal& terminal,
              bool quiet);
  /// True when all is done; false once a signal has stopped it, and all runs with it. A run that
  /// fails is noted, and the others go on.
  [[nodiscard]] bool operator()();

 private:
  struct Slot {
    std::optional<Process> process;
    std::size_t run = 0;
    std::uintmax_t log_begin = 0;  ///< Bytes of its log before this process.
  };

  [[nodiscard]] bool run_to(std::int64_t rung);
  void start(Slot& slot, int number, std::size_t run, std::int64_t until);
  void finish(Slot& slot, std::int64_t rung);
  void judge(std::int64_t rung);
  void save() const;
  [[nodiscard]] std::int64_t target(const SweepRun& run, std::int64_t rung) const;
  [[nodiscard]] std::filesystem::path folder_of(const SweepRun& run) const;
  [[nodiscard]] std::filesystem::path log_of(const SweepRun& run) const;

  SweepState& state_;
  std::filesystem::path folder_;
  const Terminal& terminal_;
  bool quiet_, stopped_ = false;
  std::map<std::string, std::string> environment_;
};

}  // namespace dkfac::app
