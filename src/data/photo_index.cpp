#include "data/photo_index.h"

#include <string_view>

#include "dkfac/core/error.h"

#include "data/cache_file.h"
#include "data/field_io.h"
#include "data/photo_format.h"

namespace dkfac::data {
namespace {

// The mark includes the version, which changes with the layout.
constexpr std::string_view kMark = "dkfacix2";

}  // namespace

std::vector<PhotoFolder> read_photo_index(const std::filesystem::path& path) {
  const std::vector<std::uint8_t> content = read_cache_file(path, kMark);
  FieldReader in{std::span(content)};
  constexpr std::size_t kLeastFile = 12, kLeastBelow = 12, kLeastName = 4, kLeastFolder = 44;
  if (in.get_text() != readable_formats()) throw DataError("[photo_index] other formats");
  std::vector<PhotoFolder> folders(in.get_count(kLeastFolder));
  for (PhotoFolder& folder : folders) {
    folder.name = in.get_text();
    folder.modified = in.get<std::int64_t>();
    folder.files.resize(in.get_count(kLeastFile));
    for (PhotoFolder::File& file : folder.files) {
      file.name = in.get_text();
      file.bytes = in.get<std::int64_t>();
    }
    folder.below.resize(in.get_count(kLeastBelow));
    for (PhotoFolder::Below& below : folder.below) {
      below.name = in.get_text();
      below.modified = in.get<std::int64_t>();
    }
    folder.left_out.count = in.get<std::int64_t>();
    folder.left_out.first.resize(in.get_count(kLeastName));
    for (std::string& name : folder.left_out.first) name = in.get_text();
  }
  if (!in.rest().empty()) throw DataError("[photo_index] trailing bytes");
  return folders;
}

bool write_photo_index(const std::filesystem::path& path, const std::vector<PhotoFolder>& folders) {
  FieldWriter body;
  body.put_text(readable_formats());
  body.put(static_cast<std::uint64_t>(folders.size()));
  for (const PhotoFolder& folder : folders) {
    body.put_text(folder.name);
    body.put(folder.modified);
    body.put(static_cast<std::uint64_t>(folder.files.size()));
    for (const PhotoFolder::File& file : folder.files) {
      body.put_text(file.name);
      body.put(file.bytes);
    }
    body.put(static_cast<std::uint64_t>(folder.below.size()));
    for (const PhotoFolder::Below& below : folder.below) {
      body.put_text(below.name);
      body.put(below.modified);
    }
    body.put(folder.left_out.count);
    body.put(static_cast<std::uint64_t>(folder.left_out.first.size()));
    for (const std::string& name : folder.left_out.first) body.put_text(name);
  }
  return write_cache_file(path, kMark, body.bytes());
}

}  // namespace dkfac::data
