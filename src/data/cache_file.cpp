#include "data/cache_file.h"

#include <cstdio>
#include <random>
#include <unistd.h>

#include "dkfac/core/error.h"
#include "dkfac/data/photo_set.h"

#include "data/field_io.h"
#include "data/shard.h"

namespace dkfac::data {
namespace {

bool write_all(const std::filesystem::path& path, std::span<const std::uint8_t> bytes) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) return false;
  const bool written = std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size();
  return std::fclose(file) == 0 && written;
}

}  // namespace

std::vector<std::uint8_t> read_cache_file(const std::filesystem::path& path,
                                          std::string_view mark) {
  constexpr std::int64_t kLimit = std::int64_t{4} << 30;
  std::vector<std::uint8_t> bytes;
  read_file(path, bytes, kLimit);
  const std::span<const std::uint8_t> all(bytes);
  FieldReader head(all);
  for (const char c : mark)
    if (head.get<char>() != c) throw DataError("[cache_file] wrong type or version");
  const auto sum = head.get<std::uint32_t>();
  if (sum != sum_of(head.rest())) throw DataError("[cache_file] wrong checksum");
  return {head.rest().begin(), head.rest().end()};
}

bool write_cache_file(const std::filesystem::path& path, std::string_view mark,
                      std::span<const std::uint8_t> content) {
  FieldWriter whole;
  for (const char c : mark) whole.put(c);
  whole.put(sum_of(content));
  for (const std::uint8_t byte : content) whole.put(byte);
  std::filesystem::path part = path;
  // Processes on other hosts may have the same id.
  std::random_device random;
  part += detail::concat(".", ::getpid(), "-", random(), ".part");
  std::error_code failed;
  if (write_all(part, whole.bytes())) {
    std::filesystem::rename(part, path, failed);
    if (!failed) return true;
  }
  std::filesystem::remove(part, failed);
  return false;
}

}  // namespace dkfac::data
