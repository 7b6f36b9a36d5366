#include "dkfac/data/photo_set.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <sys/stat.h>

#include "dkfac/core/error.h"

#include "core/shared/wait_watch.h"
#include "data/photo_index.h"

namespace dkfac::data {
namespace {

namespace fs = std::filesystem;

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

std::int64_t modified(const fs::path& folder) {
  struct stat about {};
  if (::stat(folder.c_str(), &about) != 0)
    cannot_list(folder, std::error_code(errno, std::generic_category()));
  constexpr std::int64_t kNanoseconds = 1'000'000'000;
  return about.st_mtim.tv_sec * kNanoseconds + about.st_mtim.tv_nsec;
}

/// Lists the class folders by name, without their contents.
std::vector<PhotoFolder> class_folders(const fs::path& root) {
  std::vector<PhotoFolder> out;
  for_each_entry(root, [&](const fs::directory_entry& entry) {
    std::error_code ignored;
    if (entry.is_directory(ignored))
      out.push_back({entry.path().filename().string(), modified(entry.path())});
  });
  std::ranges::sort(out, {}, &PhotoFolder::name);
  return out;
}

bool is_photo(const fs::path& name) {
  std::string ending = name.extension().string();
  std::ranges::transform(ending, ending.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return ending == ".jpg" || ending == ".jpeg";
}

void list_files(const fs::path& root, PhotoFolder& folder) {
  for_each_entry(root / folder.name, [&](const fs::directory_entry& entry) {
    std::error_code ignored;
    if (!is_photo(entry.path().filename()) || entry.is_directory(ignored)) return;
    const std::uintmax_t size = entry.file_size(ignored);  // read_file() reports a dangling link.
    folder.files.push_back(
        {entry.path().filename().string(), ignored ? 0 : static_cast<std::int64_t>(size)});
  });
  std::ranges::sort(folder.files, {}, &PhotoFolder::File::name);
}

bool same_folders(const std::vector<PhotoFolder>& a, const std::vector<PhotoFolder>& b) {
  return std::ranges::equal(a, b, [](const PhotoFolder& x, const PhotoFolder& y) {
    return x.name == y.name && x.modified == y.modified;
  });
}

/// Fills in the files of `folders`, from the index if it matches, else from the folders.
PhotoIndex find_files(const fs::path& root, const fs::path& index,
                      std::vector<PhotoFolder>& folders) {
  PhotoIndex state = index.empty() ? PhotoIndex::none : PhotoIndex::built;
  if (state != PhotoIndex::none) {
    try {
      std::vector<PhotoFolder> known = read_photo_index(index);
      if (same_folders(known, folders)) {
        folders = std::move(known);
        return PhotoIndex::used;
      }
      state = PhotoIndex::stale;
    } catch (const MissingInput&) {
    } catch (const Error&) {
      state = PhotoIndex::damaged;
    }
  }
  for (PhotoFolder& folder : folders) list_files(root, folder);
  if (state != PhotoIndex::none && !write_photo_index(index, folders))
    state = PhotoIndex::not_written;
  return state;
}

/// Label of each class.
using Labels = std::map<std::string_view, std::int32_t>;

Labels labels_of(const std::vector<std::string>& classes) {
  Labels out;
  for (const std::string& name : classes) out.emplace(name, static_cast<std::int32_t>(out.size()));
  return out;
}

void add_folder(const PhotoFolder& folder, const Labels& labels, PhotoSet& set) {
  const auto label = labels.find(folder.name);
  if (label == labels.end()) {
    throw DataError(detail::concat("[photo_set] ", (set.folder / folder.name).string(),
                                   " is not a class of the training photographs; remove it, or add "
                                   "photographs of it to both"));
  }
  if (folder.files.empty()) {
    throw DataError(detail::concat("[photo_set] ", (set.folder / folder.name).string(),
                                   " holds no photographs (*.jpg, *.jpeg); remove the folder, or "
                                   "put in what is missing"));
  }
  for (const PhotoFolder::File& file : folder.files) {
    set.files.push_back(folder.name + "/" + file.name);
    set.bytes.push_back(file.bytes);
    set.labels.push_back(label->second);
  }
}

}  // namespace

PhotoSet read_photo_set(const fs::path& folder, const fs::path& index,
                        const std::vector<std::string>& classes) {
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored))
    throw MissingInput(detail::concat("[photo_set] there is no folder ", folder.string()));
  std::vector<PhotoFolder> folders = class_folders(folder);
  if (folders.empty()) {
    throw DataError(detail::concat("[photo_set] ", folder.string(),
                                   " has no folders of classes; photographs lie in "
                                   "SPLIT/CLASS/NAME.jpeg"));
  }
  PhotoSet set;
  set.folder = folder;
  set.index = find_files(folder, index, folders);
  set.classes = classes;
  if (classes.empty())
    for (const PhotoFolder& f : folders) set.classes.push_back(f.name);
  const Labels labels = labels_of(set.classes);
  for (const PhotoFolder& f : folders) add_folder(f, labels, set);
  return set;
}

std::uint64_t fingerprint(const PhotoSet& set) {
  std::uint64_t hash = 0;
  const auto mix = [&hash](std::uint64_t word) {
    hash = (hash ^ word) * 0x9E3779B97F4A7C15U;  // Odd, so that no word is lost.
    hash ^= hash >> 29U;
  };
  const auto mix_text = [&mix](const std::string& text) {
    mix(text.size());
    for (const char c : text) mix(static_cast<unsigned char>(c));
  };
  mix(set.classes.size());
  for (const std::string& name : set.classes) mix_text(name);
  mix(set.files.size());
  for (std::size_t i = 0; i < set.files.size(); ++i) {
    mix_text(set.files[i]);
    mix(static_cast<std::uint64_t>(set.bytes[i]));
    mix(static_cast<std::uint32_t>(set.labels[i]));
  }
  return hash;
}

void read_file(const fs::path& path, std::vector<std::uint8_t>& out, std::int64_t limit) {
  const auto fail = [&](int why) {
    const std::string text =
        detail::concat("[read_file] cannot read ", path.string(), ": ", std::strerror(why));
    if (why == ENOENT || why == ENOTDIR) throw MissingInput(text);
    throw IoError(text);
  };
  // To open a pipe would otherwise wait for a writer.
  const int opened = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (opened < 0) fail(errno);
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(::fdopen(opened, "rb"), std::fclose);
  if (file == nullptr) fail(errno);
  struct stat about {};
  if (::fstat(opened, &about) != 0) fail(errno);
  if (S_ISDIR(about.st_mode)) fail(EISDIR);
  if (!S_ISREG(about.st_mode))
    throw IoError(detail::concat("[read_file] cannot read ", path.string(),
                                 ": it is a pipe or device; remove it, or put a file there"));
  if (about.st_size > limit)
    throw DataError(detail::concat("[read_file] ", path.string(), " has ", about.st_size,
                                   " bytes, and ", limit, " are the limit"));
  out.resize(static_cast<std::size_t>(about.st_size));
  errno = 0;
  const std::size_t got = std::fread(out.data(), 1, out.size(), file.get());
  if (got != out.size()) {
    if (std::ferror(file.get()) != 0) fail(errno);
    out.resize(got);  // The file became shorter meanwhile.
  }
}

}  // namespace dkfac::data
