#include "data/photo_splits.h"

#include <utility>

#include "dkfac/core/error.h"

#include "data/shared/photo_facts.h"
#include "data/shared/photo_shards.h"

namespace dkfac::data {
namespace {

namespace fs = std::filesystem;

constexpr const char* kIndex = ".dkfac-index";

std::shared_ptr<const PhotoSource> open_split(const fs::path& folder, const fs::path& index,
                                              const std::vector<std::string>& classes) {
  if (!holds_shards(folder)) return folder_source(read_photo_set(folder, index, classes));
  std::shared_ptr<const PhotoSource> packed = shard_source(folder);
  if (!classes.empty() && packed->classes() != classes)
    throw DataError(detail::concat("[load_data] ", folder.string(),
                                   " was packed with other classes than the training split; pack "
                                   "both again, or take both from one place"));
  return packed;
}

/// Returns the prefix of the cache files of a split. It is hidden, so that listing the classes
/// ignores them.
fs::path cache_of(const fs::path& folder, const std::string& split, const DataSource& source) {
  return source.photo_index ? folder / ("." + split) : fs::path();
}
fs::path with_ending(const fs::path& cache_path, const char* ending) {
  return cache_path.empty() ? cache_path : fs::path(cache_path.string() + ending);
}

/// Appends sample `from` of `all` to `to`.
void move_photo(const Dataset& all, std::int64_t from, Dataset& to, PhotoData& photos) {
  const auto at = static_cast<std::size_t>(from);
  to.labels.push_back(all.labels[at]);
  photos.samples.push_back(all.photos->samples[at]);
  ++to.count;
}

Dataset without_samples(const Dataset& data, std::string name) {
  Dataset out = data;
  out.name = std::move(name);
  out.count = 0;
  out.labels.clear();
  return out;
}

}  // namespace

DataSplits photo_splits(const DataSource& source, const PhotoSplit& train, const PhotoSplit& test) {
  PhotoOptions tested = source.photos;
  tested.crop = source.photo_test_crop;
  tested.resized = source.photo_test_resized;
  if (source.photo_test_size > 0) tested.size = source.photo_test_size;
  tested.rectangular = source.photo_test_rectangular;
  const Normalization normalization =
      source.photo_own_normalization
          ? find_photo_normalization(*train.source, source.photos.workers,
                                     with_ending(train.cache_path, ".dkfac-colours"))
          : imagenet_normalization();
  return {photo_dataset(train.name, train.source, source.photos, normalization, train.cache_path),
          photo_dataset(test.name, test.source, tested, normalization, test.cache_path)};
}

DataSplits load_photos(const fs::path& folder, const DataSource& source) {
  source.photos.validate();
  std::error_code ignored;
  const bool val = fs::is_directory(folder / "val", ignored);
  if (!val && !fs::is_directory(folder / "test", ignored))
    throw MissingInput(detail::concat("[load_data] ", folder.string(), " has a folder train, but ",
                                      "neither val nor test; put the photographs to test on into ",
                                      "one of them, by class"));
  const std::string other = val ? "val" : "test";
  const fs::path train_cache = cache_of(folder, "train", source);
  const fs::path test_cache = cache_of(folder, other, source);
  const auto train = open_split(folder / "train", with_ending(train_cache, kIndex), {});
  const auto test = open_split(folder / other, with_ending(test_cache, kIndex), train->classes());
  DataSplits out = photo_splits(source, {train, source.name, train_cache},
                                {test, source.name + " " + other, test_cache});
  for (const auto& split : {train, test})
    if (std::string remark = split->remark(); !remark.empty())
      out.remarks.push_back(std::move(remark));
  return out;
}

void hold_out_photos(DataSplits& data, std::int64_t count) {
  const Dataset all = std::move(data.train);
  PhotoData rest = *all.photos, held = *all.photos;
  if (data.test.photos != nullptr) held.options = data.test.photos->options;
  rest.samples.clear();
  held.samples.clear();
  data.train = without_samples(all, all.name);
  data.test = without_samples(all, all.name + " held out");
  data.test.height = data.test.width = held.options.size;
  for (std::int64_t i = 0; i < all.count; ++i) {
    const bool is_held = (i + 1) * count / all.count > i * count / all.count;
    if (is_held)
      move_photo(all, i, data.test, held);
    else
      move_photo(all, i, data.train, rest);
  }
  if (held.options.rectangular)
    held.sizes =
        find_photo_sizes(*held.source, held.samples, held.options.workers, held.sizes_cache());
  data.train.photos = std::make_shared<PhotoData>(std::move(rest));
  data.test.photos = std::make_shared<PhotoData>(std::move(held));
}

}  // namespace dkfac::data
