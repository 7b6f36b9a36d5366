#include <algorithm>
#include <iterator>
#include <utility>

#include "dkfac/core/error.h"
#include "dkfac/data/dataset.h"
#include "dkfac/data/photo_data.h"

#include "data/mean_values.h"
#include "data/pixel_sums.h"
#include "data/word_hash.h"

namespace dkfac::data {
namespace {

/// Sums of each pixel over pictures.
struct PixelSums {
  std::vector<std::uint64_t> sums;
  std::int64_t pictures = 0;

  void add(std::span<const std::uint8_t> picture) {
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += picture[i];
    ++pictures;
  }
  void add(const PixelSums& other) {
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += other.sums[i];
    pictures += other.pictures;
  }
};

PixelSums sums_of_photos(const Dataset& train, std::int64_t size, int workers) {
  const PhotoData& photos = *train.photos;
  PhotoOptions options;
  options.crop = PhotoCrop::squashed_centre;
  options.size = options.resized = size;
  const PixelSums none{std::vector<std::uint64_t>(static_cast<std::size_t>(size * size * 3))};
  const auto number_of = [&](std::int64_t i) {
    return photos.samples[static_cast<std::size_t>(i)];
  };
  return sum_photos(*photos.source, std::ssize(photos.samples), number_of, options, workers, none);
}

}  // namespace

FoundMeanImage find_mean_image(const Dataset& train, std::int64_t size, int workers) {
  DKFAC_CHECK(train.count > 0, "[find_mean_image] data set '", train.name,
              "' is empty; give at least one picture");
  DKFAC_CHECK(size > 0 && size <= 4096, "[find_mean_image] size is ", size,
              "; it must be from 1 to 4096");
  FoundMeanImage found;
  PixelSums sums;
  if (train.photos != nullptr) {
    sums = sums_of_photos(train, size, workers);
    found.image = {.height = size, .width = size, .channels = 3};
  } else {
    sums.sums.resize(static_cast<std::size_t>(train.image_size()));
    for (std::int64_t i = 0; i < train.count; ++i)
      sums.add(std::span(train.pixels).subspan(static_cast<std::size_t>(i * train.image_size())));
    found.image = {.height = train.height, .width = train.width, .channels = train.channels};
  }
  if (sums.pictures == 0)
    throw DataError(detail::concat("[find_mean_image] data set '", train.name,
                                   "' has no good photograph; check the files"));
  found.pictures = sums.pictures;
  found.bad = train.count - sums.pictures;
  for (const std::uint64_t sum : sums.sums)
    found.image.values.push_back(static_cast<double>(sum) / static_cast<double>(sums.pictures) /
                                 255);
  return found;
}

std::uint64_t fingerprint(const MeanImage& mean) {
  WordHash hash;
  hash.mix(mean.height, mean.width, mean.channels);
  hash.mix_bits(mean.values);
  return hash.value();
}

template <class W>
std::vector<W> mean_values(const Normalization& normalization, const Shape& image) {
  if (normalization.mean_image == nullptr) return {};
  const MeanImage& mean = *normalization.mean_image;
  DKFAC_CHECK(mean.height >= image[0] && mean.width >= image[1] && mean.channels == image[2],
              "[loader] the mean image is of ", mean.height, "x", mean.width, "x", mean.channels,
              ", and the images are of ", image[0], "x", image[1], "x", image[2],
              "; use one of their channels and at least their size");
  DKFAC_CHECK(std::ssize(mean.values) == mean.height * mean.width * mean.channels,
              "[loader] the mean image has ", mean.values.size(), " values for ", mean.height, "x",
              mean.width, "x", mean.channels, "; give one for each");
  std::vector<W> out;
  out.reserve(static_cast<std::size_t>(image.numel()));
  const std::int64_t row = image[1] * image[2];
  for (std::int64_t y = 0; y < image[0]; ++y) {
    const double* from = mean.values.data() + y * mean.width * mean.channels;
    std::transform(from, from + row, std::back_inserter(out),
                   [](double value) { return static_cast<W>(value); });
  }
  return out;
}

template std::vector<double> mean_values(const Normalization&, const Shape&);
template std::vector<float> mean_values(const Normalization&, const Shape&);

}  // namespace dkfac::data
