#pragma once

#include <filesystem>

namespace dkfac::app {

constexpr const char* kLockFile = "run.lock";

/// Advisory lock on the file run.lock of a folder, which allows one run at a time. The system
/// releases it when the process ends in any way. Throws InvalidArgument naming the process that
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
