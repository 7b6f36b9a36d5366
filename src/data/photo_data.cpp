#include "dkfac/data/photo_data.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "dkfac/core/error.h"

#include "core/shared/activity_timer.h"
#include "data/shared/photo_facts.h"

namespace dkfac::data {
namespace {

namespace fs = std::filesystem;

class FolderSource final : public PhotoSource {
 public:
  explicit FolderSource(PhotoSet set) : set_(std::move(set)) {}

  [[nodiscard]] std::int64_t count() const override { return set_.count(); }
  [[nodiscard]] const std::vector<std::string>& classes() const override { return set_.classes; }
  [[nodiscard]] const std::vector<std::int32_t>& labels() const override { return set_.labels; }
  [[nodiscard]] std::string name(std::int64_t i) const override { return set_.path(i).string(); }
  [[nodiscard]] std::string remark() const override { return left_out_text(set_); }
  [[nodiscard]] std::uint64_t fingerprint() const override { return data::fingerprint(set_); }

  ImageSize open(std::int64_t i, PhotoScratch& scratch) const override {
    scratch.number = i;
    {
      const ActivityTimer timer(scratch.read_s);
      read_file(set_.path(i), scratch.file);
    }
    return photo_size(scratch.file);
  }

  ImageView decode(const DecodeOptions& options, PhotoScratch& scratch) const override {
    const ActivityTimer timer(scratch.decode_s);
    decode_photo(scratch.file, options, scratch.picture);
    return scratch.picture;
  }

 private:
  const PhotoSet set_;
};

/// Scales a box to a picture decoded at reduced size. libjpeg rounds sizes up, so the last pixels
/// may cover less than others.
Area scaled_box(const Box& box, const ImageSize& whole, const ImageView& picture) {
  const auto part = [](std::int64_t from, std::int64_t to) {
    for (const std::int64_t by : {1, 2, 4, 8})
      if ((from + by - 1) / by == to) return 1 / static_cast<double>(by);
    return static_cast<double>(to) / static_cast<double>(from);
  };
  // A short side may round to the same length at two scales; the long one determines the scale.
  const double scale = whole.height >= whole.width ? part(whole.height, picture.height)
                                                   : part(whole.width, picture.width);
  return {static_cast<double>(box.y) * scale, static_cast<double>(box.x) * scale,
          static_cast<double>(box.height) * scale, static_cast<double>(box.width) * scale};
}

/// Returns the length at which the whole picture must be decoded so that `box` has `wanted` pixels.
std::int64_t enough(std::int64_t picture, std::int64_t box, std::int64_t wanted) {
  return (picture * wanted + box - 1) / box;
}

}  // namespace

std::shared_ptr<const PhotoSource> folder_source(PhotoSet set) {
  return std::make_shared<FolderSource>(std::move(set));
}

void PhotoOptions::validate() const {
  DKFAC_CHECK(size > 0 && size <= 4096, "[photo] size is ", size, "; it must be from 1 to 4096");
  DKFAC_CHECK(crop == PhotoCrop::random_resized || (resized >= size && resized <= 8192),
              "[photo] resized is ", resized, "; it must be from the size ", size, " to 8192");
  DKFAC_CHECK(workers >= 0, "[photo] workers is ", workers, "; it must be >= 0");
  DKFAC_CHECK(bad_limit >= 0 && bad_limit <= 1, "[photo] bad_limit is ", bad_limit,
              "; it must be from 0 to 1");
  DKFAC_CHECK(!rectangular || crop == PhotoCrop::centre,
              "[photo] rectangular batches are of centre crops; choose them, or leave it out");
  random.validate();
}

Normalization imagenet_normalization() { return {{0.485, 0.456, 0.406}, {0.229, 0.224, 0.225}}; }

Dataset photo_dataset(std::string name, std::shared_ptr<const PhotoSource> source,
                      const PhotoOptions& options, Normalization normalization,
                      const fs::path& cache_path) {
  options.validate();
  Dataset out;
  out.name = std::move(name);
  out.count = source->count();
  out.height = out.width = options.size;
  out.channels = 3;
  out.classes = std::ssize(source->classes());
  out.labels = source->labels();
  PhotoData photos;
  photos.samples.resize(static_cast<std::size_t>(out.count));
  std::iota(photos.samples.begin(), photos.samples.end(), std::int64_t{0});
  photos.source = std::move(source);
  photos.options = options;
  photos.normalization = std::move(normalization);
  photos.cache_path = cache_path;
  if (options.rectangular)
    photos.sizes =
        find_photo_sizes(*photos.source, photos.samples, options.workers, photos.sizes_cache());
  out.photos = std::make_shared<PhotoData>(std::move(photos));
  return out;
}

fs::path PhotoData::sizes_cache() const {
  return cache_path.empty() ? cache_path : fs::path(cache_path.string() + ".dkfac-sizes");
}

PhotoView choose_view(const PhotoOptions& options, const ImageSize& picture, const ImageSize& shape,
                      const PhotoKey& key) {
  switch (options.crop) {
    case PhotoCrop::random_resized:
      return random_resized_crop(picture, options.size, options.random, key);
    case PhotoCrop::squashed:
      return squashed_crop(picture, options.resized, options.size, key);
    case PhotoCrop::squashed_centre:
      return squashed_centre_crop(picture, options.resized, options.size);
    case PhotoCrop::centre:
      break;
  }
  return centre_crop(picture, options.resized, shape.height, shape.width);
}

void make_image(const PhotoSource& source, std::int64_t i, const PhotoOptions& options,
                const ImageSize& shape, const PhotoKey& key, std::uint8_t* out,
                PhotoScratch& scratch) {
  const ImageSize whole = source.open(i, scratch);
  const PhotoView view = choose_view(options, whole, shape, key);
  DecodeOptions decoding;
  decoding.region = view.from;
  if (options.scaled_decoding) {
    decoding.enough_height = enough(whole.height, view.from.height, view.height);
    decoding.enough_width = enough(whole.width, view.from.width, view.width);
  }
  const ImageView picture = source.decode(decoding, scratch);
  const ActivityTimer timer(scratch.resize_s);
  resize_bilinear(picture, scaled_box(view.from, whole, picture), view.height, view.width,
                  view.window, out, scratch.rows);
}

}  // namespace dkfac::data
