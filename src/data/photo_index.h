#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace dkfac::data {

/// A class folder as it was listed.
struct PhotoFolder {
  struct File {
    std::string name;
    std::int64_t bytes = 0;
    bool operator==(const File&) const = default;
  };
  std::string name;
  std::int64_t modified = 0;  ///< Nanoseconds.
  std::vector<File> files{};
  bool operator==(const PhotoFolder&) const = default;
};

/// Throws DataError when the content is wrong, MissingInput and IoError as read_file().
[[nodiscard]] std::vector<PhotoFolder> read_photo_index(const std::filesystem::path& path);
/// Beside the old file, then in its place. Returns whether it could be written.
[[nodiscard]] bool write_photo_index(const std::filesystem::path& path,
                                     const std::vector<PhotoFolder>& folders);

}  // namespace dkfac::data
