#include <atomic>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>

#include "dkfac/core/error.h"

#include "app/shared/report.h"

namespace dkfac::app {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void cannot(const char* what, const fs::path& path, int code) {
  throw IoError(detail::concat("[write_file] cannot ", what, " ", path.string(), ": ",
                               std::strerror(code),
                               "; check that the folder exists and has permission and space"));
}

/// A file that vanishes with the scope unless it was renamed to its place.
class TemporaryFile {
 public:
  explicit TemporaryFile(const fs::path& target) {
    static std::atomic<unsigned> counter{0};
    path_ = target;
    path_ += detail::concat(".", ::getpid(), "-", counter++, ".tmp");
    descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (descriptor_ < 0) cannot("create", path_, errno);
  }
  ~TemporaryFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
    if (!path_.empty()) ::unlink(path_.c_str());
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  void write(std::string_view text) {
    while (!text.empty()) {
      const ssize_t n = ::write(descriptor_, text.data(), text.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) cannot("write", path_, errno);
      text.remove_prefix(static_cast<std::size_t>(n));
    }
    if (::fsync(descriptor_) != 0) cannot("sync", path_, errno);
    const int closed = ::close(descriptor_);
    descriptor_ = -1;
    if (closed != 0) cannot("close", path_, errno);
  }

  void move_to(const fs::path& target) {
    if (::rename(path_.c_str(), target.c_str()) != 0) cannot("rename to", target, errno);
    path_.clear();
  }

 private:
  fs::path path_;
  int descriptor_ = -1;
};

/// The new name is safe only when the folder is. Not every file system can do that.
void keep_name_in(const fs::path& folder) {
  const int descriptor = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return;
  ::fsync(descriptor);
  ::close(descriptor);
}

}  // namespace

void write_file(const fs::path& path, const std::string& text) {
  TemporaryFile temporary(path);
  temporary.write(text);
  temporary.move_to(path);
  keep_name_in(path.parent_path());
}

}  // namespace dkfac::app
