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

/// Files of a split that are not read.
struct LeftOut {
  std::int64_t count = 0;
  std::vector<std::string> first{};  ///< The first names, bytewise; at most five.

  void add(const std::string& name);
  void add(const LeftOut& other, const std::string& folder);  ///< Its names get the prefix.
  bool operator==(const LeftOut&) const = default;
};

/// List of the photographs of one split of an ImageFolder: `folder`/CLASS/NAME, also in folders
/// below CLASS. A photograph is a file whose name ends in .jpg, .jpeg, .png or .webp in any case,
/// or that begins as such a file does. Formats that the build does not read, other files, and
/// photographs outside of class folders are left out. Names that begin with a dot are ignored.
struct PhotoSet {
  std::filesystem::path folder;
  std::vector<std::string> classes;  ///< Class names by label.
  std::vector<std::string> files;    ///< "CLASS/NAME", sorted bytewise by class, then by name.
  std::vector<std::int64_t> bytes;   ///< Sizes of the files.
  std::vector<std::int32_t> labels;  ///< Into `classes`.
  PhotoIndex index = PhotoIndex::none;
  LeftOut left_out{};

  [[nodiscard]] std::int64_t count() const { return static_cast<std::int64_t>(files.size()); }
  [[nodiscard]] std::filesystem::path path(std::int64_t i) const {
    return folder / files[static_cast<std::size_t>(i)];
  }
};

/// Lists a split. Labels number the class folders in bytewise order, or, if `classes` is given
/// (those of the training split), index that list.
///
/// `index` is a file that caches the list; empty for none. It is used while the class folders,
/// those below them and their modification times are unchanged, so a file rewritten in place with
/// another size is not detected here. It is replaced atomically (by renaming), so any number of
/// processes may do so. An invalid index is never an error.
///
/// Throws MissingInput when the folder does not exist; DataError for a split without class folders,
/// a class folder without photographs, and one that is not in `classes`; IoError when listing
/// fails.
[[nodiscard]] PhotoSet read_photo_set(const std::filesystem::path& folder,
                                      const std::filesystem::path& index = {},
                                      const std::vector<std::string>& classes = {});

/// Returns one sentence about the files that are left out, with their number and the first names;
/// empty for none.
[[nodiscard]] std::string left_out_text(const PhotoSet& set);

/// Returns a 64-bit hash of classes, names, sizes and labels, but not of the location of the
/// folder, to compare the data of ranks.
[[nodiscard]] std::uint64_t fingerprint(const PhotoSet& set);

/// Reads a whole file into `out`, whose memory is reused. Throws MissingInput when the file does
/// not exist, IoError with the system's reason when it cannot be read, DataError above `limit`
/// bytes.
void read_file(const std::filesystem::path& path, std::vector<std::uint8_t>& out,
               std::int64_t limit = std::int64_t{256} << 20);

}  // namespace dkfac::data
