#pragma once

#include <filesystem>

namespace dkfac::app {

/// One run at a time in a folder: holds an advisory lock on its file run.lock, which the system
/// lets go when the process ends, however it ends. Throws InvalidArgument naming the process that
/// holds it, IoError.
class RunLock {
 public:
  explicit RunLock(const std::filesystem::path& folder);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  int descriptor_ = -1;
};

}  // namespace dkfac::app
