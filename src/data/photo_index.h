#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace dkfac::data {

/// Listing of a class folder.
struct PhotoFolder {
  struct File {
    std::string name;
    std::int64_t bytes = 0;
    bool operator==(const File&) const = default;
  };
  std::string name;
  std::int64_t modified = 0;  ///< Modification time in nanoseconds.
  std::vector<File> files{};
  bool operator==(const PhotoFolder&) const = default;
};

/// Reads an index. Throws DataError for invalid content, MissingInput and IoError as read_file().
[[nodiscard]] std::vector<PhotoFolder> read_photo_index(const std::filesystem::path& path);
/// Replaces the index atomically. Returns whether it could be written.
[[nodiscard]] bool write_photo_index(const std::filesystem::path& path,
                                     const std::vector<PhotoFolder>& folders);

}  // namespace dkfac::data
