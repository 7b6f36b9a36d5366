#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace dkfac::data {

/// A file mapped into memory for reading.
class MappedFile {
 public:
  /// Throws MissingInput or IoError.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;
  [[nodiscard]] std::span<const std::uint8_t> bytes() const { return {data_, size_}; }

 private:
  const std::uint8_t* data_ = nullptr;
  std::size_t size_ = 0;
};

struct ShardPhoto {
  std::string name;
  std::int32_t label = 0;
  std::int64_t height = 0, width = 0;
  std::uint64_t place = 0;  ///< Offset in the file; while writing, among the pixels.
  std::uint32_t sum = 0;    ///< CRC-32 of the pixels.
  [[nodiscard]] std::uint64_t bytes() const {
    return 3 * static_cast<std::uint64_t>(height) * static_cast<std::uint64_t>(width);
  }
};

/// Header of a packed file, before the pixels; see photo_shards.h.
struct ShardHeader {
  std::vector<std::string> classes;
  std::uint64_t set = 0;  ///< Hash of the whole set.
  std::uint32_t number = 0, shards = 0;
  std::vector<ShardPhoto> photos;
};

[[nodiscard]] std::uint32_t sum_of(std::span<const std::uint8_t> bytes);
/// Serializes a header, whose offsets count from the first pixel.
[[nodiscard]] std::vector<std::uint8_t> shard_bytes(const ShardHeader& header);
/// Parses the header of a whole file. Every offset, size and label is checked against the file and
/// the classes. Throws DataError.
[[nodiscard]] ShardHeader parse_shard(std::span<const std::uint8_t> file);

/// "shard-00012.photos"
[[nodiscard]] std::string shard_name(std::uint32_t number);

}  // namespace dkfac::data
