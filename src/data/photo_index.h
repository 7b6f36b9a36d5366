#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "dkfac/data/photo_set.h"

namespace dkfac::data {

/// Listing of a class folder. Names of what lies deeper are paths within it.
struct PhotoFolder {
  struct Below {
    std::string name;
    std::int64_t modified = 0;
    bool operator==(const Below&) const = default;
  };
  struct File {
    std::string name;
    std::int64_t bytes = 0;
    bool operator==(const File&) const = default;
  };
  std::string name;
  std::int64_t modified = 0;  ///< Modification time in nanoseconds.
  std::vector<File> files{};
  std::vector<Below> below{};  ///< Folders below it.
  LeftOut left_out{};
  bool operator==(const PhotoFolder&) const = default;
};

/// Reads an index. Throws DataError for invalid content, also of a build that reads other formats,
/// MissingInput and IoError as read_file().
[[nodiscard]] std::vector<PhotoFolder> read_photo_index(const std::filesystem::path& path);
/// Replaces the index atomically. Returns whether it could be written.
[[nodiscard]] bool write_photo_index(const std::filesystem::path& path,
                                     const std::vector<PhotoFolder>& folders);

}  // namespace dkfac::data
