#include "app/run/run_lock.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <string>
#include <sys/file.h>
#include <unistd.h>

#include <fmt/core.h>

#include "dkfac/core/error.h"

namespace dkfac::app {

namespace {

std::string who() {
  std::array<char, 256> host{};
  if (gethostname(host.data(), host.size() - 1) != 0) host[0] = '?';
  return fmt::format("process {} on {}\n", ::getpid(), host.data());
}

std::string read_holder(int descriptor) {
  std::array<char, 300> text{};
  const ssize_t n = ::pread(descriptor, text.data(), text.size() - 1, 0);
  std::string holder(text.data(), n > 0 ? static_cast<std::size_t>(n) : 0);
  while (holder.ends_with('\n')) holder.pop_back();
  return holder.empty() ? "another process" : holder;
}

}  // namespace

bool is_locked(const std::filesystem::path& folder) {
  const int descriptor = ::open((folder / kLockFile).c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
  if (descriptor < 0) return false;
  const bool locked = ::flock(descriptor, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  ::close(descriptor);
  return locked;
}

RunLock::RunLock(const std::filesystem::path& folder, const char* file) {
  const std::filesystem::path path = folder / file;
  descriptor_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
  if (descriptor_ < 0)
    throw IoError(fmt::format("[run folder] cannot open '{}' ({}); check permissions",
                              path.string(), std::strerror(errno)));
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
    const int error = errno;
    const std::string holder = read_holder(descriptor_);
    ::close(descriptor_);
    DKFAC_CHECK(error != EWOULDBLOCK, "[run folder] '", folder.string(), "' is in use by ", holder,
                "; wait for it, or choose another --out");
    throw IoError(fmt::format("[run folder] cannot lock '{}' ({}); use another file system",
                              path.string(), std::strerror(error)));
  }
  const std::string text = who();
  // The text is only for messages of other processes.
  if (::ftruncate(descriptor_, 0) == 0) (void)!::pwrite(descriptor_, text.data(), text.size(), 0);
}

RunLock::~RunLock() { ::close(descriptor_); }

}  // namespace dkfac::app
