#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <sys/mman.h>
#include <unistd.h>

#include "dkfac/core/error.h"

#include "fuzz/targets.h"

namespace dkfac::fuzz {

/// Runs a reader, which may throw errors of the library alone.
template <class Reader>
void attempt(Reader&& reader) {
  try {
    reader();
  } catch (const Error&) {
  }
}

inline std::string_view text_of(Bytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// A file in memory with these bytes.
class MemoryFile {
 public:
  explicit MemoryFile(Bytes bytes) : fd_(memfd_create("dkfac", MFD_CLOEXEC)) {
    if (fd_ < 0 || write(fd_, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size()))
      throw std::runtime_error("no file in memory");
  }
  ~MemoryFile() { close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  [[nodiscard]] std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

}  // namespace dkfac::fuzz
