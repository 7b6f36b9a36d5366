#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "dkfac/data/photo_data.h"

namespace dkfac::data {

/// Photographs decoded once and for all: files of 8-bit pixels, `FOLDER/shard-00000.photos` and so
/// on, which are mapped into memory. They take the time of decoding out of training, for disk space
/// (a picture whose shorter side is 256 has about 260 kB).
///
/// A file, little-endian: "dkfacph1", u32 CRC-32 of the header, u64 bytes of the header; the
/// header: u64 number of classes, their names (u32 length, text), u64 hash of the whole set, u32
/// number of this file and of all, u64 photographs in it, each with its name, i32 label, u32
/// height, u32 width, u64 place of its pixels in the file and u32 CRC-32 of them; then the pixels,
/// [height, width,3] each, with nothing between.
struct PackOptions {
  std::int64_t shorter = 256;  ///< The shorter side is reduced to this; smaller ones stay. 0: none.
  bool square = false;         ///< Resized to [shorter,shorter], whatever the aspect.
  std::int64_t shard_bytes = std::int64_t{1} << 30;  ///< A file ends after this many of pixels.
  int workers = 0;          ///< Threads that decode; 0: as many as cores, up to 16.
  double bad_limit = 1e-3;  ///< More bad ones than this share (rounded up) are a DataError.
  void validate() const;    ///< Throws InvalidArgument naming the field.
};

/// What pack_photos() did.
struct PackResult {
  std::int64_t photos = 0, bytes = 0;
  int shards = 0;
  std::vector<std::string> bad{};  ///< Left out, with reasons.
};

/// Writes all good photographs of a source, in its order, to a folder that is not there yet or
/// empty. The files appear with their names when all are whole. Equal at any number of workers.
/// Throws InvalidArgument for a folder that holds something, DataError for too many bad ones,
/// IoError when writing fails.
PackResult pack_photos(const PhotoSource& source, const std::filesystem::path& folder,
                       const PackOptions& options);

/// Whether a folder holds such files.
[[nodiscard]] bool holds_shards(const std::filesystem::path& folder);
/// Their photographs. Lengths and places are checked before they are used, against the size of the
/// file. Throws MissingInput without files, DataError for a damaged header, or files that do not
/// belong together.
[[nodiscard]] std::shared_ptr<const PhotoSource> shard_source(const std::filesystem::path& folder);
/// Compares the checksums of all pixels. Throws DataError naming the first photograph that differs.
void verify_shards(const std::filesystem::path& folder);

}  // namespace dkfac::data
