#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <sys/types.h>
#include <vector>

namespace dkfac::app {

/// A program that runs beside this one, in a process group of its own: Ctrl-C is for us to pass on.
/// It is asked to stop when this process dies.
class Process {
 public:
  /// `words`: the program and its arguments. Both its outputs are appended to `log`. Throws
  /// IoError.
  Process(std::vector<std::string> words, const std::filesystem::path& log);
  ~Process();  ///< Ends one that still runs.
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  /// How it ended, without waiting: its exit code, or minus the number of a signal.
  [[nodiscard]] std::optional<int> ended();
  /// SIGUSR1, which launchers pass on to all ranks, and by which a run saves itself and stops.
  void ask_to_stop() const;

 private:
  pid_t id_ = -1;
  std::optional<int> end_;
};

/// The path of this program.
[[nodiscard]] std::filesystem::path this_program();

}  // namespace dkfac::app
