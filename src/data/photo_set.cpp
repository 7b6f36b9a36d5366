#include "dkfac/data/photo_set.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <map>
#include <memory>
#include <string_view>
#include <sys/stat.h>
#include <utility>

#include "dkfac/core/error.h"

#include "core/shared/printable.h"
#include "data/photo_format.h"
#include "data/photo_index.h"
#include "data/photo_listing.h"
#include "data/word_hash.h"

namespace dkfac::data {
namespace {

namespace fs = std::filesystem;

bool same_folders(const fs::path& root, const std::vector<PhotoFolder>& known,
                  const std::vector<PhotoFolder>& now) {
  return std::ranges::equal(known, now, [&](const PhotoFolder& x, const PhotoFolder& y) {
    return x.name == y.name && x.modified == y.modified && same_below(root, x);
  });
}

/// Fills in the files of `folders`, from the index if it matches, else from the folders.
PhotoIndex find_files(const fs::path& root, const fs::path& index,
                      std::vector<PhotoFolder>& folders) {
  PhotoIndex state = index.empty() ? PhotoIndex::none : PhotoIndex::built;
  if (state != PhotoIndex::none) {
    try {
      std::vector<PhotoFolder> known = read_photo_index(index);
      if (same_folders(root, known, folders)) {
        folders = std::move(known);
        return PhotoIndex::used;
      }
      state = PhotoIndex::stale;
    } catch (const MissingInput&) {
    } catch (const Error&) {
      state = PhotoIndex::damaged;
    }
  }
  for (PhotoFolder& folder : folders) list_photos(root, folder);
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
                                   " holds no photographs (", readable_formats(),
                                   "); remove the folder, or put in what is missing"));
  }
  set.left_out.add(folder.left_out, folder.name + "/");
  for (const PhotoFolder::File& file : folder.files) {
    set.files.push_back(folder.name + "/" + file.name);
    set.bytes.push_back(file.bytes);
    set.labels.push_back(label->second);
  }
}

}  // namespace

void LeftOut::add(const std::string& name) { add({1, {name}}, ""); }

void LeftOut::add(const LeftOut& other, const std::string& folder) {
  constexpr std::size_t kMost = 5;
  count += other.count;
  for (const std::string& name : other.first) first.push_back(folder + name);
  std::ranges::sort(first);
  first.resize(std::min(first.size(), kMost));
}

std::string left_out_text(const PhotoSet& set) {
  if (set.left_out.count == 0) return {};
  std::string names;
  for (const std::string& name : set.left_out.first)
    names += (names.empty() ? "" : ", ") + printable(name, 200);
  const std::int64_t more = set.left_out.count - std::ssize(set.left_out.first);
  if (more > 0) names += detail::concat(" and ", more, " more");
  return detail::concat("[photo_set] ", printable(set.folder.string(), 1000), ": ",
                        set.left_out.count, set.left_out.count == 1 ? " file is" : " files are",
                        " left out, which lie in no class folder or are no photographs of a format "
                        "that this build reads (",
                        readable_formats(), "): ", names);
}

PhotoSet read_photo_set(const fs::path& folder, const fs::path& index,
                        const std::vector<std::string>& classes) {
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored))
    throw MissingInput(detail::concat("[photo_set] there is no folder ", folder.string()));
  auto [folders, beside] = list_class_folders(folder);
  if (folders.empty()) {
    throw DataError(detail::concat("[photo_set] ", folder.string(),
                                   " has no folders of classes; photographs lie in "
                                   "SPLIT/CLASS/NAME.jpeg"));
  }
  PhotoSet set;
  set.folder = folder;
  set.left_out = std::move(beside);
  set.index = find_files(folder, index, folders);
  set.classes = classes;
  if (classes.empty())
    for (const PhotoFolder& f : folders) set.classes.push_back(f.name);
  const Labels labels = labels_of(set.classes);
  for (const PhotoFolder& f : folders) add_folder(f, labels, set);
  return set;
}

std::uint64_t fingerprint(const PhotoSet& set) {
  WordHash hash;
  const auto mix_text = [&hash](const std::string& text) {
    hash.mix(text.size());
    for (const char c : text) hash.mix(static_cast<unsigned char>(c));
  };
  hash.mix(set.classes.size());
  for (const std::string& name : set.classes) mix_text(name);
  hash.mix(set.files.size());
  for (std::size_t i = 0; i < set.files.size(); ++i) {
    mix_text(set.files[i]);
    hash.mix(set.bytes[i], static_cast<std::uint32_t>(set.labels[i]));
  }
  return hash.value();
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
