#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <optional>
#include <unistd.h>
#include <utility>

#include "dkfac/core/error.h"

#include "data/shard.h"
#include "data/shared/photo_shards.h"
#include "data/word_hash.h"
#include "data/worker_pool.h"

namespace dkfac::data {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kTogether = 64;  ///< Photographs decoded at once, which bounds memory.

/// A file of raw pixels; its header is written when all photographs are known.
class PixelFile {
 public:
  explicit PixelFile(fs::path path) : path_(std::move(path)) {
    file_ = std::fopen(path_.c_str(), "wb");
    if (file_ == nullptr) fail(errno);
  }
  ~PixelFile() {
    if (file_ != nullptr) std::fclose(file_);
  }
  PixelFile(const PixelFile&) = delete;
  PixelFile& operator=(const PixelFile&) = delete;

  void write(std::span<const std::uint8_t> bytes) {
    if (std::fwrite(bytes.data(), 1, bytes.size(), file_) != bytes.size()) fail(errno);
  }
  void close() {
    if (std::fflush(file_) != 0 || ::fsync(::fileno(file_)) != 0) fail(errno);
    if (std::fclose(std::exchange(file_, nullptr)) != 0) fail(errno);
  }

 private:
  [[noreturn]] void fail(int why) const {
    throw IoError(detail::concat("[pack] cannot write ", path_.string(), ": ", std::strerror(why)));
  }
  fs::path path_;
  std::FILE* file_ = nullptr;
};

struct Picture {
  ImageSize size;
  std::vector<std::uint8_t> pixels;
  std::string bad;  ///< Reason, if damaged.
};

ImageSize packed_size(const ImageSize& picture, const PackOptions& options) {
  if (options.square) return {options.shorter, options.shorter};
  const std::int64_t shorter = std::min(picture.height, picture.width);
  if (options.shorter == 0 || shorter <= options.shorter) return picture;
  // Torchvision's Resize truncates.
  return {picture.height == shorter ? options.shorter : picture.height * options.shorter / shorter,
          picture.width == shorter ? options.shorter : picture.width * options.shorter / shorter};
}

void decode_into(const PhotoSource& source, std::int64_t i, const PackOptions& options,
                 PhotoScratch& scratch, Picture& out) {
  out.bad.clear();
  try {
    out.size = packed_size(source.open(i, scratch), options);
    const ImageView whole = source.decode({}, scratch);
    out.pixels.resize(static_cast<std::size_t>(3 * out.size.height * out.size.width));
    resize_bilinear(whole, Box{0, 0, whole.height, whole.width}, out.size.height, out.size.width,
                    out.pixels.data(), scratch.rows);
  } catch (const DataError& error) {
    out.bad = source.name(i) + ": " + error.what();
  }
}

fs::path part_of(const fs::path& folder, std::size_t number) {
  return folder / (shard_name(static_cast<std::uint32_t>(number)) + ".part");
}

/// Writes pixels to part files immediately and collects the contents of the headers.
class Packer {
 public:
  Packer(const PhotoSource& source, const fs::path& folder, const PackOptions& options)
      : source_(source), folder_(folder), options_(options) {}

  void add(std::int64_t i, const Picture& picture) {
    if (!picture.bad.empty()) return refuse(picture.bad);
    if (shards_.empty() || bytes_ >= options_.shard_bytes) begin_shard();
    // The name within the set, without the location of the set.
    const fs::path name = source_.name(i);
    shards_.back().push_back({.name = (name.parent_path().filename() / name.filename()).string(),
                              .label = source_.labels()[static_cast<std::size_t>(i)],
                              .height = picture.size.height,
                              .width = picture.size.width,
                              .place = static_cast<std::uint64_t>(bytes_),
                              .sum = sum_of(picture.pixels)});
    file_->write(picture.pixels);
    bytes_ += std::ssize(picture.pixels);
    result_.bytes += std::ssize(picture.pixels);
    ++result_.photos;
  }

  PackResult finish() {
    if (shards_.empty()) throw DataError("[pack] there is no good photograph");
    file_->close();
    result_.shards = static_cast<int>(shards_.size());
    const std::uint64_t set = hash();
    for (std::size_t number = 0; number < shards_.size(); ++number) complete(number, set);
    for (std::size_t number = shards_.size(); number-- > 0;) {
      // The first file, which identifies a set, is renamed last.
      fs::rename(folder_ / (shard_name(static_cast<std::uint32_t>(number)) + ".whole"),
                 folder_ / shard_name(static_cast<std::uint32_t>(number)));
    }
    return std::move(result_);
  }

 private:
  void refuse(const std::string& why) {
    result_.bad.push_back(why);
    const double most = std::ceil(options_.bad_limit * static_cast<double>(source_.count()));
    if (static_cast<double>(result_.bad.size()) <= most) return;
    std::string text = detail::concat("[pack] more than ", most, " of ", source_.count(),
                                      " photographs are bad; the first:");
    for (std::size_t i = 0; i < std::min<std::size_t>(10, result_.bad.size()); ++i)
      text += "\n  " + result_.bad[i];
    throw DataError(text);
  }

  void begin_shard() {
    if (file_) file_->close();
    file_.emplace(part_of(folder_, shards_.size()));
    shards_.emplace_back();
    bytes_ = 0;
  }

  [[nodiscard]] std::uint64_t hash() const {
    WordHash hash(options_.square ? 1 : 0);
    for (const auto& photos : shards_)
      for (const ShardPhoto& photo : photos)
        hash.mix(photo.sum, static_cast<std::uint32_t>(photo.label), photo.bytes());
    return hash.value();
  }

  /// Joins header and pixels into one file.
  void complete(std::size_t number, std::uint64_t set) {
    const auto n = static_cast<std::uint32_t>(number);
    const std::vector<std::uint8_t> header =
        shard_bytes({.classes = source_.classes(),
                     .set = set,
                     .number = n,
                     .shards = static_cast<std::uint32_t>(shards_.size()),
                     .photos = shards_[number]});
    PixelFile whole(folder_ / (shard_name(n) + ".whole"));
    whole.write(header);
    {
      const MappedFile part(part_of(folder_, number));
      whole.write(part.bytes());
    }
    whole.close();
    fs::remove(part_of(folder_, number));
  }

  const PhotoSource& source_;
  const fs::path& folder_;
  const PackOptions& options_;
  PackResult result_;
  std::optional<PixelFile> file_;
  std::int64_t bytes_ = 0;  ///< Of the file being written.
  std::vector<std::vector<ShardPhoto>> shards_;
};

}  // namespace

void PackOptions::validate() const {
  DKFAC_CHECK(shorter >= 0 && shorter <= 8192 && (!square || shorter > 0), "[pack] shorter is ",
              shorter, "; it must be from 0 to 8192, and above 0 for squares");
  DKFAC_CHECK(shard_bytes > 0, "[pack] shard_bytes is ", shard_bytes, "; it must be > 0");
  DKFAC_CHECK(workers >= 0, "[pack] workers is ", workers, "; it must be >= 0");
  DKFAC_CHECK(bad_limit >= 0 && bad_limit <= 1, "[pack] bad_limit is ", bad_limit,
              "; it must be from 0 to 1");
}

PackResult pack_photos(const PhotoSource& source, const fs::path& folder,
                       const PackOptions& options) {
  options.validate();
  std::error_code failed;
  DKFAC_CHECK(!fs::exists(folder, failed) || fs::is_empty(folder, failed), "[pack] ",
              folder.string(), " is there and not empty; give a new folder");
  fs::create_directories(folder, failed);
  if (failed)
    throw IoError(detail::concat("[pack] cannot create ", folder.string(), ": ", failed.message()));
  WorkerPool pool(photo_workers(options.workers));
  std::vector<PhotoScratch> scratch(static_cast<std::size_t>(pool.workers()));
  std::vector<Picture> pictures(kTogether);
  Packer packer(source, folder, options);
  for (std::int64_t first = 0; first < source.count(); first += kTogether) {
    const std::int64_t count = std::min(kTogether, source.count() - first);
    pool.run(count, [&](int worker, std::int64_t i) {
      decode_into(source, first + i, options, scratch[static_cast<std::size_t>(worker)],
                  pictures[static_cast<std::size_t>(i)]);
    });
    for (std::int64_t i = 0; i < count; ++i)
      packer.add(first + i, pictures[static_cast<std::size_t>(i)]);
  }
  return packer.finish();
}

}  // namespace dkfac::data
