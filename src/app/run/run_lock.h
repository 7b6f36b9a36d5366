#pragma once

#include <filesystem>

namespace dkfac::app {

constexpr const char* kLockFile = "run.lock";
constexpr const char* kCommandLockFile = "command.lock";  ///< Of a folder that holds several runs.

/// Returns whether a process holds the lock of this folder; changes nothing.
[[nodiscard]] bool is_locked(const std::filesystem::path& folder);

/// Advisory lock on a file of a folder, which allows one run or command at a time. The system
/// releases it when the process ends in any way. Throws InvalidArgument naming the process that
/// holds it, IoError.
class RunLock {
 public:
  explicit RunLock(const std::filesystem::path& folder, const char* file = kLockFile);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  int descriptor_ = -1;
};

}  // namespace dkfac::app
