#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "dkfac/data/image.h"

namespace dkfac::data {

/// What became of the index file beside a set.
enum class PhotoIndex : std::uint8_t {
  none,        ///< None was asked for.
  used,        ///< The folders are as it says.
  built,       ///< There was none.
  stale,       ///< Folders have changed; it was replaced.
  damaged,     ///< Its content is wrong; it was replaced.
  not_written  ///< Folders were read, and writing failed; nothing depends on it.
};

/// The photographs of one split of an ImageFolder: `folder`/CLASS/NAME, with names that end in
/// .jpg or .jpeg in any case. Other files, deeper folders and names that begin with a dot are not
/// looked at.
struct PhotoSet {
  std::filesystem::path folder;
  std::vector<std::string> classes;  ///< Of the labels.
  std::vector<std::string> files;    ///< "CLASS/NAME", sorted bytewise.
  std::vector<std::int64_t> bytes;   ///< Sizes of the files.
  std::vector<std::int32_t> labels;  ///< Into `classes`.
  PhotoIndex index = PhotoIndex::none;

  [[nodiscard]] std::int64_t count() const { return static_cast<std::int64_t>(files.size()); }
  [[nodiscard]] std::filesystem::path path(std::int64_t i) const {
    return folder / files[static_cast<std::size_t>(i)];
  }
};

/// Lists a split. Labels count the class folders in bytewise order, or where `classes` are given
/// (those of the training split) the places in that list.
///
/// `index`: a file that keeps the list, empty for none. It is used while the class folders and
/// their times of modification are what they were, so a file that was rewritten in place with
/// another size is not noticed here. It is replaced as a whole (by renaming), so any number of
/// processes may do so. What is wrong with it is never an error.
///
/// Throws MissingInput when there is no such folder, DataError for a split without class folders, a
/// class folder without photographs and one that is not in `classes`; IoError when listing fails.
[[nodiscard]] PhotoSet read_photo_set(const std::filesystem::path& folder,
                                      const std::filesystem::path& index = {},
                                      const std::vector<std::string>& classes = {});

/// 64-bit hash of classes, names, sizes and labels, but not of where the folder is, to compare what
/// ranks have read.
[[nodiscard]] std::uint64_t fingerprint(const PhotoSet& set);

/// The whole file, whose memory is used again. Throws MissingInput when it is not there, IoError
/// with the system's reason when it cannot be read, DataError above `limit` bytes.
void read_file(const std::filesystem::path& path, std::vector<std::uint8_t>& out,
               std::int64_t limit = std::int64_t{256} << 20);

}  // namespace dkfac::data
