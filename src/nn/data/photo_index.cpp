#include "nn/data/photo_index.h"

#include <cstdio>
#include <string_view>
#include <unistd.h>

#include <zlib.h>

#include "dkfac/core/error.h"
#include "dkfac/nn/photo_set.h"

#include "nn/data/record.h"

namespace dkfac::nn {
namespace {

// The name says the version: another layout gets another one.
constexpr std::string_view kMagic = "dkfacix1";

std::uint32_t sum_of(std::span<const std::uint8_t> bytes) {
  return static_cast<std::uint32_t>(crc32_z(0, bytes.data(), bytes.size()));
}

/// Whole or not at all.
bool write_all(const std::filesystem::path& path, std::span<const std::uint8_t> bytes) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) return false;
  const bool written = std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size();
  return std::fclose(file) == 0 && written;
}

}  // namespace

std::vector<PhotoFolder> read_photo_index(const std::filesystem::path& path) {
  constexpr std::int64_t kLimit = std::int64_t{4} << 30;
  std::vector<std::uint8_t> bytes;
  read_file(path, bytes, kLimit);
  const std::span<const std::uint8_t> all(bytes);
  RecordReader head(all);
  for (const char c : kMagic)
    if (head.get<char>() != c) throw DataError("[photo_index] this is no index of photographs");
  const auto sum = head.get<std::uint32_t>();
  if (sum != sum_of(head.rest())) throw DataError("[photo_index] its checksum is wrong");
  RecordReader in(head.rest());
  constexpr std::size_t kLeastFile = 12, kLeastFolder = 20;
  std::vector<PhotoFolder> folders(in.get_count(kLeastFolder));
  for (PhotoFolder& folder : folders) {
    folder.name = in.get_text();
    folder.modified = in.get<std::int64_t>();
    folder.files.resize(in.get_count(kLeastFile));
    for (PhotoFolder::File& file : folder.files) {
      file.name = in.get_text();
      file.bytes = in.get<std::int64_t>();
    }
  }
  if (!in.rest().empty()) throw DataError("[photo_index] it goes on after its end");
  return folders;
}

bool write_photo_index(const std::filesystem::path& path, const std::vector<PhotoFolder>& folders) {
  RecordWriter body;
  body.put(static_cast<std::uint64_t>(folders.size()));
  for (const PhotoFolder& folder : folders) {
    body.put_text(folder.name);
    body.put(folder.modified);
    body.put(static_cast<std::uint64_t>(folder.files.size()));
    for (const PhotoFolder::File& file : folder.files) {
      body.put_text(file.name);
      body.put(file.bytes);
    }
  }
  RecordWriter whole;
  for (const char c : kMagic) whole.put(c);
  whole.put(sum_of(body.bytes()));
  for (const std::uint8_t byte : body.bytes()) whole.put(byte);
  std::filesystem::path part = path;
  part += detail::concat(".", ::getpid(), ".part");
  if (!write_all(part, whole.bytes())) return false;
  std::error_code failed;
  std::filesystem::rename(part, path, failed);
  if (failed) std::filesystem::remove(part, failed);
  return std::filesystem::exists(path, failed);
}

}  // namespace dkfac::nn
