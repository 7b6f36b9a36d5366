#include <algorithm>
#include <utility>

#include "dkfac/core/error.h"

#include "core/shared/printable.h"
#include "data/shard.h"
#include "data/shared/photo_shards.h"

namespace dkfac::data {
namespace {

namespace fs = std::filesystem;

struct Shard {
  fs::path path;
  MappedFile file;
  ShardHeader header;
};

Shard open_shard(const fs::path& path) {
  MappedFile file(path);
  try {
    ShardHeader header = parse_shard(file.bytes());
    return {path, std::move(file), std::move(header)};
  } catch (const DataError& error) {
    throw DataError(detail::concat("[photo_shards] ", path.string(), ": ", error.what()));
  }
}

/// Throws DataError for a file of another set, whose mixture would be no valid data set.
void check_belongs(const Shard& shard, const ShardHeader& first, std::uint32_t number) {
  const ShardHeader& header = shard.header;
  if (header.number == number && header.shards == first.shards && header.set == first.set &&
      header.classes == first.classes)
    return;
  throw DataError(detail::concat("[photo_shards] ", shard.path.string(), " is number ",
                                 header.number, " of ", header.shards,
                                 " of another set than the first file"));
}

std::vector<Shard> open_shards(const fs::path& folder) {
  std::vector<Shard> shards;
  shards.push_back(open_shard(folder / shard_name(0)));
  const std::uint32_t count = shards.front().header.shards;
  for (std::uint32_t number = 0; number < std::max(1U, count); ++number) {
    if (number > 0) shards.push_back(open_shard(folder / shard_name(number)));
    check_belongs(shards.back(), shards.front().header, number);
  }
  return shards;
}

class ShardSource final : public PhotoSource {
 public:
  explicit ShardSource(const fs::path& folder) : shards_(open_shards(folder)) {
    for (const Shard& shard : shards_) {
      for (const ShardPhoto& photo : shard.header.photos) {
        photos_.push_back({&shard, &photo});
        labels_.push_back(photo.label);
      }
    }
    if (photos_.empty())
      throw DataError(detail::concat("[photo_shards] ", folder.string(), " holds no photographs"));
  }

  [[nodiscard]] std::int64_t count() const override { return std::ssize(photos_); }
  [[nodiscard]] const std::vector<std::string>& classes() const override {
    return shards_.front().header.classes;
  }
  [[nodiscard]] const std::vector<std::int32_t>& labels() const override { return labels_; }
  [[nodiscard]] std::string name(std::int64_t i) const override {
    const Place& place = at(i);
    return place.shard->path.string() + ":" + printable(place.photo->name);
  }
  [[nodiscard]] std::uint64_t fingerprint() const override { return shards_.front().header.set; }

  ImageSize open(std::int64_t i, PhotoScratch& scratch) const override {
    scratch.number = i;
    return {at(i).photo->height, at(i).photo->width};
  }

  ImageView decode(const DecodeOptions&, PhotoScratch& scratch) const override {
    const auto& [shard, photo] = at(scratch.number);
    return {photo->height, photo->width, shard->file.bytes().data() + photo->place};
  }

  void verify() const {
    for (const auto& [shard, photo] : photos_) {
      if (sum_of(shard->file.bytes().subspan(photo->place, photo->bytes())) == photo->sum) continue;
      throw DataError(detail::concat("[photo_shards] ", shard->path.string(),
                                     ": the pixels of photograph '", printable(photo->name),
                                     "' are not those that were written; pack them again"));
    }
  }

 private:
  struct Place {
    const Shard* shard;
    const ShardPhoto* photo;
  };
  [[nodiscard]] const Place& at(std::int64_t i) const {
    return photos_.at(static_cast<std::size_t>(i));
  }

  const std::vector<Shard> shards_;
  std::vector<Place> photos_;
  std::vector<std::int32_t> labels_;
};

}  // namespace

bool holds_shards(const fs::path& folder) {
  std::error_code ignored;
  return fs::exists(folder / shard_name(0), ignored);
}

std::shared_ptr<const PhotoSource> shard_source(const fs::path& folder) {
  return std::make_shared<ShardSource>(folder);
}

void verify_shards(const fs::path& folder) { ShardSource(folder).verify(); }

}  // namespace dkfac::data
