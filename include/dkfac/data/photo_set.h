#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "dkfac/data/image.h"

namespace dkfac::data {

/// Outcome for the index file of a set.
enum class PhotoIndex : std::uint8_t {
  none,        ///< No index was requested.
  used,        ///< The folders match the index.
  built,       ///< There was no index; it was written.
  stale,       ///< Folders have changed; it was replaced.
  damaged,     ///< Its content is invalid; it was replaced.
  not_written  ///< The folders were listed, and writing the index failed; this is no error.
};

/// List of the photographs of one split of an ImageFolder: `folder`/CLASS/NAME, with names that end
/// in .jpg or .jpeg in any case. Other files, deeper folders and names that begin with a dot are
/// ignored.
struct PhotoSet {
  std::filesystem::path folder;
  std::vector<std::string> classes;  ///< Class names by label.
  std::vector<std::string> files;    ///< "CLASS/NAME", sorted bytewise.
  std::vector<std::int64_t> bytes;   ///< Sizes of the files.
  std::vector<std::int32_t> labels;  ///< Into `classes`.
  PhotoIndex index = PhotoIndex::none;

  [[nodiscard]] std::int64_t count() const { return static_cast<std::int64_t>(files.size()); }
  [[nodiscard]] std::filesystem::path path(std::int64_t i) const {
    return folder / files[static_cast<std::size_t>(i)];
  }
};

/// Lists a split. Labels number the class folders in bytewise order, or, if `classes` is given
/// (those of the training split), index that list.
///
/// `index` is a file that caches the list; empty for none. It is used while the class folders and
/// their modification times are unchanged, so a file rewritten in place with another size is not
/// detected here. It is replaced atomically (by renaming), so any number of processes may do so. An
/// invalid index is never an error.
///
/// Throws MissingInput when the folder does not exist; DataError for a split without class folders,
/// a class folder without photographs, and one that is not in `classes`; IoError when listing
/// fails.
[[nodiscard]] PhotoSet read_photo_set(const std::filesystem::path& folder,
                                      const std::filesystem::path& index = {},
                                      const std::vector<std::string>& classes = {});

/// Returns a 64-bit hash of classes, names, sizes and labels, but not of the location of the
/// folder, to compare the data of ranks.
[[nodiscard]] std::uint64_t fingerprint(const PhotoSet& set);

/// Reads a whole file into `out`, whose memory is reused. Throws MissingInput when the file does
/// not exist, IoError with the system's reason when it cannot be read, DataError above `limit`
/// bytes.
void read_file(const std::filesystem::path& path, std::vector<std::uint8_t>& out,
               std::int64_t limit = std::int64_t{256} << 20);

}  // namespace dkfac::data
