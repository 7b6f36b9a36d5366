#include "data/photo_listing.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <fcntl.h>
#include <optional>
#include <sys/stat.h>
#include <unistd.h>

#include "dkfac/core/error.h"

#include "core/shared/printable.h"
#include "core/shared/wait_watch.h"
#include "data/photo_format.h"

namespace dkfac::data {
namespace {

namespace fs = std::filesystem;

constexpr int kDeepest = 16;  ///< Folders below each other; links may form a circle.

[[noreturn]] void cannot_list(const fs::path& folder, const std::error_code& why) {
  throw IoError(detail::concat("[photo_set] cannot list ", folder.string(), ": ", why.message()));
}

/// Calls f(entry) for all names that do not begin with a dot, in unspecified order.
template <class F>
void for_each_entry(const fs::path& folder, F f) {
  std::error_code failed;
  fs::directory_iterator entry(folder, failed);
  if (failed) cannot_list(folder, failed);
  for (; entry != fs::directory_iterator(); entry.increment(failed)) {
    poll_wait_watches();
    if (entry->path().filename().native().front() != '.') f(*entry);
    if (failed) break;
  }
  if (failed) cannot_list(folder, failed);
}

/// Returns the modification time in nanoseconds; nothing, with errno, for what is not there.
std::optional<std::int64_t> time_of(const fs::path& folder) {
  struct stat about {};
  if (::stat(folder.c_str(), &about) != 0) return {};
  constexpr std::int64_t kNanoseconds = 1'000'000'000;
  return about.st_mtim.tv_sec * kNanoseconds + about.st_mtim.tv_nsec;
}

std::int64_t modified(const fs::path& folder) {
  const auto time = time_of(folder);
  if (!time) cannot_list(folder, std::error_code(errno, std::generic_category()));
  return *time;
}

bool is_folder(const fs::directory_entry& entry) {
  std::error_code ignored;
  return entry.is_directory(ignored);
}

/// Returns the format by the first bytes; `other` for what is no file, or cannot be read.
PhotoFormat format_inside(const fs::directory_entry& entry) {
  std::error_code ignored;
  if (!entry.is_regular_file(ignored)) return PhotoFormat::other;
  const int file = ::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return PhotoFormat::other;
  std::array<std::uint8_t, kFormatBytes> begin{};
  const ssize_t got = ::read(file, begin.data(), begin.size());
  ::close(file);
  return format_of(std::span(begin).first(got > 0 ? static_cast<std::size_t>(got) : 0));
}

bool is_photo(const fs::directory_entry& entry) {
  const PhotoFormat format = format_of_name(entry.path());
  // Without libjpeg the decoder says so.
  return format == PhotoFormat::jpeg || can_decode(format) || can_decode(format_inside(entry));
}

/// Lists `below`, a path within the class folder that is empty for itself.
void list_folder(const fs::path& root, const std::string& below, int depth, PhotoFolder& out) {
  for_each_entry(root / below, [&](const fs::directory_entry& entry) {
    const std::string name = below + entry.path().filename().string();
    if (is_folder(entry)) {
      if (depth == kDeepest)
        throw DataError(detail::concat("[photo_set] ", printable(entry.path().string(), 1000),
                                       " lies more than ", kDeepest,
                                       " folders deep; is there a link to a folder above it?"));
      out.below.push_back({name, modified(entry.path())});
      return list_folder(root, name + "/", depth + 1, out);
    }
    if (!is_photo(entry)) return out.left_out.add(name);
    std::error_code ignored;
    const std::uintmax_t size = entry.file_size(ignored);  // read_file() reports a dangling link.
    out.files.push_back({name, ignored ? 0 : static_cast<std::int64_t>(size)});
  });
}

}  // namespace

PhotoFolders list_class_folders(const fs::path& split) {
  PhotoFolders out;
  for_each_entry(split, [&](const fs::directory_entry& entry) {
    const std::string name = entry.path().filename().string();
    if (is_folder(entry))
      out.classes.push_back({name, modified(entry.path())});
    else if (format_of_name(name) != PhotoFormat::other)
      out.beside.add(name);
  });
  std::ranges::sort(out.classes, {}, &PhotoFolder::name);
  return out;
}

void list_photos(const fs::path& split, PhotoFolder& folder) {
  list_folder(split / folder.name, "", 0, folder);
  std::ranges::sort(folder.files, {}, &PhotoFolder::File::name);
  std::ranges::sort(folder.below, {}, &PhotoFolder::Below::name);
}

bool same_below(const fs::path& split, const PhotoFolder& folder) {
  return std::ranges::all_of(folder.below, [&](const PhotoFolder::Below& below) {
    return time_of(split / folder.name / below.name) == below.modified;
  });
}

}  // namespace dkfac::data
