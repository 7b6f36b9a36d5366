#include "app/checkpoint/durable.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "dkfac/core/error.h"

#include "core/shared/crc32c.h"

namespace dkfac::app {

namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const char* what, const fs::path& path, int code) {
  throw IoError(detail::concat("[files] cannot ", what, " '", path.string(),
                               "': ", std::strerror(code), "; check free space and permissions"));
}

constexpr std::string_view kTemporary = ".tmp";

/// Returns whether put_file() makes such names: "NAME.PROCESS-NUMBER.tmp".
bool is_temporary(std::string_view name) {
  if (!name.ends_with(kTemporary)) return false;
  name.remove_suffix(kTemporary.size());
  const auto cut_number = [&name] {
    const std::size_t digits = name.size() - (name.find_last_not_of("0123456789") + 1);
    name.remove_suffix(digits);
    return digits > 0;
  };
  if (!cut_number() || !name.ends_with('-')) return false;
  name.remove_suffix(1);
  return cut_number() && name.size() > 1 && name.ends_with('.');
}

/// File descriptor that is closed at the end of its scope.
struct Descriptor {
  int value;
  ~Descriptor() {
    if (value >= 0) ::close(value);
  }
};

}  // namespace

DurableFile::DurableFile(fs::path path) : path_(std::move(path)) {
  descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
  if (descriptor_ < 0) fail("create", path_, errno);
}

DurableFile::~DurableFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void DurableFile::write(std::span<const std::byte> bytes) {
  constexpr std::size_t kPiece = std::size_t{1} << 20;  // stays in the cache for the sum
  while (!bytes.empty()) {
    const ssize_t n = ::write(descriptor_, bytes.data(), std::min(bytes.size(), kPiece));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("write", path_, errno);
    const auto done = static_cast<std::size_t>(n);
    sum_.crc32c = crc32c(bytes.first(done), sum_.crc32c);
    sum_.bytes += done;
    bytes = bytes.subspan(done);
  }
}

FileSum DurableFile::finish() {
  if (::fsync(descriptor_) != 0) fail("sync", path_, errno);
  if (::close(std::exchange(descriptor_, -1)) != 0) fail("close", path_, errno);
  return sum_;
}

FileSum write_durable(const fs::path& path, std::string_view text) {
  DurableFile file(path);
  file.write(std::as_bytes(std::span(text.data(), text.size())));
  return file.finish();
}

void write_file(const fs::path& path, std::string_view text) {
  put_file(path, [&](const fs::path& temporary) { (void)write_durable(temporary, text); });
}

void put_file(const fs::path& path, const std::function<void(const fs::path&)>& write) {
  static std::atomic<unsigned> counter{0};
  fs::path temporary = path;
  temporary += detail::concat(".", ::getpid(), "-", counter++, kTemporary);
  ::unlink(temporary.c_str());  // Of a killed process that had this number, as in containers.
  try {
    write(temporary);
    if (::rename(temporary.c_str(), path.c_str()) != 0) fail("rename to", path, errno);
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  const fs::path folder = path.parent_path();
  sync_folder(folder.empty() ? "." : folder);
}

void remove_temporaries(const fs::path& folder) {
  std::error_code ignored;
  for (const auto& file : fs::directory_iterator(folder, ignored))
    if (is_temporary(file.path().filename().string())) fs::remove(file.path(), ignored);
}

void sync_folder(const fs::path& folder) {
  const Descriptor descriptor{::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (descriptor.value < 0) fail("open", folder, errno);
  // Some file systems cannot sync a folder and return EINVAL.
  if (::fsync(descriptor.value) != 0 && errno != EINVAL) fail("sync", folder, errno);
}

void put_in_place(const fs::path& from, const fs::path& to) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) return;
  if (errno != ENOENT) {  // `to` exists but cannot be replaced in one step.
    std::error_code ignored;
    fs::remove_all(to, ignored);
  }
  if (::rename(from.c_str(), to.c_str()) != 0) fail("rename to", to, errno);
}

std::vector<std::byte> read_bytes(const fs::path& path) {
  // A pipe without a writer would block.
  const Descriptor descriptor{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (descriptor.value < 0 && errno == ENOENT)
    throw MissingInput(detail::concat("[files] there is no '", path.string(), "'; check the path"));
  struct stat status {};
  if (descriptor.value < 0 || ::fstat(descriptor.value, &status) != 0) fail("open", path, errno);
  if (!S_ISREG(status.st_mode))
    throw IoError(detail::concat("[files] cannot read '", path.string(), "': it is ",
                                 S_ISDIR(status.st_mode) ? "a folder" : "no regular file",
                                 "; name a file"));
  std::vector<std::byte> bytes(static_cast<std::size_t>(status.st_size));
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = ::read(descriptor.value, bytes.data() + done, bytes.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("read", path, errno);
    if (n == 0) break;
    done += static_cast<std::size_t>(n);
  }
  bytes.resize(done);
  return bytes;
}

}  // namespace dkfac::app
