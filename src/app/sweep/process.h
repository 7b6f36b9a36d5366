#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <sys/types.h>
#include <vector>

namespace dkfac::app {

/// A child process in a process group of its own, so that this program handles Ctrl-C for it. It is
/// requested to stop when this process dies.
class Process {
 public:
  /// `words`: the program and its arguments. Its standard output and error are appended to `log`.
  /// Throws IoError.
  Process(std::vector<std::string> words, const std::filesystem::path& log);
  ~Process();  ///< Ends the process if it still runs.
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  /// Returns the exit code, or minus the number of a signal, without waiting; unset while it runs.
  [[nodiscard]] std::optional<int> ended();
  /// Sends SIGUSR1, which launchers forward to all ranks; a run then saves a checkpoint and stops.
  void ask_to_stop() const;

 private:
  pid_t id_ = -1;
  std::optional<int> end_;
};

/// Returns the path of this program.
[[nodiscard]] std::filesystem::path this_program();

}  // namespace dkfac::app
