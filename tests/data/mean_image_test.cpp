// Mean images: their values, and images from which they are subtracted.

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"
#include "dkfac/core/half.h"
#include "dkfac/data/dataset.h"
#include "dkfac/data/loader.h"
#include "dkfac/data/photo_data.h"

#include "data/image_writer.h"
#include "support/made_photos.h"

namespace dkfac::data {
namespace {

using dkfac::testing::evaluated_photos;
using dkfac::testing::MadePhotos;
using dkfac::testing::mixed_sizes;

constexpr double kMeanEps = std::numeric_limits<double>::epsilon();

std::shared_ptr<const MeanImage> shared_mean(MeanImage mean) {
  return std::make_shared<const MeanImage>(std::move(mean));
}

/// All images of a data set in order, in f64.
std::vector<double> loaded_images(const Dataset& data) {
  Loader loader(data, normalization_of(data),
                {.count = data.count, .global_batch = 7, .shuffle = false, .drop_last = false}, 0,
                1, DType::f64);
  loader.start_epoch(0);
  std::vector<double> out;
  for (Batch batch; loader.next(batch);)
    out.insert(out.end(), batch.images.data<double>(),
               batch.images.data<double>() + batch.images.numel());
  return out;
}

/// Largest mean over the images at one pixel.
double largest_mean(const std::vector<double>& images, std::size_t size) {
  double largest = 0;
  for (std::size_t i = 0; i < size; ++i) {
    double sum = 0;
    for (std::size_t at = i; at < images.size(); at += size) sum += images[at];
    largest = std::max(
        largest, std::abs(sum * static_cast<double>(size) / static_cast<double>(images.size())));
  }
  return largest;
}

TEST(MeanImage, LeavesImagesWhoseMeanIsZeroAtEachPixel) {
  Dataset data = synthetic_images(40, {6, 5, 3}, 4, 3);
  const auto size = static_cast<std::size_t>(data.image_size());
  const double by_channel = largest_mean(loaded_images(data), size);
  const FoundMeanImage found = find_mean_image(data);
  EXPECT_EQ(found.pictures, 40);
  EXPECT_EQ(found.bad, 0);
  data.mean_image = shared_mean(found.image);
  // c*n*eps: n = 40 values of at most 1, c = 4 for quotient, mean, difference and sum.
  EXPECT_LT(largest_mean(loaded_images(data), size), 4 * 40 * kMeanEps);
  EXPECT_GT(by_channel, 0.01) << "the mean of a channel is not that of its pixels";
}

TEST(MeanImage, OfPhotographsIsThatOfWholePicturesResized) {
  constexpr std::int64_t kSize = 12;
  const std::set<std::int64_t> damaged{4, 9};
  const auto photos = std::make_shared<MadePhotos>(mixed_sizes(23), damaged);
  const Dataset data = evaluated_photos(photos, false);
  const FoundMeanImage found = find_mean_image(data, kSize, 3);
  EXPECT_EQ(found.pictures, 21);
  EXPECT_EQ(found.bad, 2);
  EXPECT_EQ(find_mean_image(data, kSize, 1).image.values, found.image.values);
  std::vector<double> sums(kSize * kSize * 3), crops = sums;
  std::vector<std::uint8_t> resized(sums.size()), scratch;
  for (std::int64_t i = 0; i < photos->count(); ++i) {
    if (damaged.contains(i)) continue;
    const Image& picture = photos->picture(i);
    resize_bilinear(picture, Box{0, 0, picture.height, picture.width}, kSize, kSize, resized.data(),
                    scratch);
    for (std::size_t k = 0; k < sums.size(); ++k) sums[k] += resized[k] / 255.0;
    // A centre crop, for comparison.
    const std::int64_t side = std::min(picture.height, picture.width);
    resize_bilinear(picture,
                    Box{(picture.height - side) / 2, (picture.width - side) / 2, side, side}, kSize,
                    kSize, resized.data(), scratch);
    for (std::size_t k = 0; k < sums.size(); ++k) crops[k] += resized[k] / 255.0;
  }
  ASSERT_EQ(found.image.values.size(), sums.size());
  double other = 0;
  for (std::size_t k = 0; k < sums.size(); ++k) {
    // c*n*eps: n = 21 values of at most 1, c = 2.
    EXPECT_NEAR(found.image.values[k], sums[k] / 21, 2 * 21 * kMeanEps) << k;
    other = std::max(other, std::abs(found.image.values[k] - crops[k] / 21));
  }
  EXPECT_GT(other, 0.01) << "parts of the pictures have another mean";
}

/// An image and a mean image larger than it, whose upper left part counts.
struct Centred {
  explicit Centred(std::int64_t c) : channels(c) {
    for (std::int64_t i = 0; i < kRows * kColumns * c; ++i)
      pixels.push_back(static_cast<std::uint8_t>(3 + 2 * i));
    MeanImage image{.height = kRows + 1, .width = kColumns + 2, .channels = c};
    for (std::int64_t i = 0; i < image.height * image.width * c; ++i)
      image.values.push_back(0.1 + 0.7 * static_cast<double>(i * i % 101) / 101);
    normalization = {std::vector<double>(static_cast<std::size_t>(c), 0),
                     std::vector<double>(static_cast<std::size_t>(c), 1), shared_mean(image)};
  }
  [[nodiscard]] double mean(std::int64_t y, std::int64_t x, std::int64_t c) const {
    return normalization.mean_image
        ->values[static_cast<std::size_t>((y * (kColumns + 2) + x) * channels + c)];
  }
  [[nodiscard]] double pixel(std::int64_t y, std::int64_t x, std::int64_t c) const {
    return pixels[static_cast<std::size_t>((y * kColumns + x) * channels + c)] / 255.0;
  }

  static constexpr std::int64_t kRows = 4, kColumns = 5;
  std::int64_t channels;
  std::vector<std::uint8_t> pixels{};
  Normalization normalization{};
};

TEST(MeanImage, IsSubtractedAfterCropAndFlip) {
  constexpr std::int64_t kRows = Centred::kRows, kColumns = Centred::kColumns;
  for (const std::int64_t channels : {1, 3}) {
    const Centred sample(channels);
    double before_crop = 0;
    for (const bool flip : {false, true})
      for (std::int32_t dy = -2; dy <= 2; ++dy)
        for (std::int32_t dx = -2; dx <= 2; ++dx) {
          const AugmentOptions options{
              .pad = 2, .pad_mode = PadMode::zero, .flip = true, .cutout = 2};
          const Augmentation change{.dy = dy, .dx = dx, .flip = flip, .cut_y = 1, .cut_x = 2};
          std::vector<double> out(sample.pixels.size());
          ImageWriter<double>(sample.normalization, {kRows, kColumns, channels}, options)
              .write(sample.pixels.data(), change, out.data());
          for (std::int64_t y = 0; y < kRows; ++y)
            for (std::int64_t x = 0; x < kColumns; ++x)
              for (std::int64_t c = 0; c < channels; ++c) {
                const std::int64_t from_y = y + dy, from_x = (flip ? kColumns - 1 - x : x) + dx;
                const bool cut = y >= 1 && y < 3 && x >= 2 && x < 4;
                const bool inside =
                    from_y >= 0 && from_y < kRows && from_x >= 0 && from_x < kColumns;
                const double value =
                    out[static_cast<std::size_t>((y * kColumns + x) * channels + c)];
                if (cut || !inside) {
                  EXPECT_EQ(value, 0) << y << ' ' << x;
                  continue;
                }
                const double pixel = sample.pixel(from_y, from_x, c);
                EXPECT_EQ(value, pixel - sample.mean(y, x, c)) << dy << ' ' << dx << ' ' << flip;
                before_crop = std::max(before_crop,
                                       std::abs(value - (pixel - sample.mean(from_y, from_x, c))));
              }
        }
    EXPECT_GT(before_crop, 0.1) << "its place in the image matters";
  }
}

TEST(MeanImage, IsReflectedNowhere) {
  const Centred sample(3);
  const Shape shape{Centred::kRows, Centred::kColumns, 3};
  std::vector<double> out(sample.pixels.size());
  ImageWriter<double>(sample.normalization, shape, {.pad = 1})
      .write(sample.pixels.data(), {.dy = -1, .dx = 0}, out.data());
  for (std::int64_t x = 0; x < Centred::kColumns; ++x)
    EXPECT_EQ(out[static_cast<std::size_t>(3 * x)], sample.pixel(1, x, 0) - sample.mean(0, x, 0));
}

template <class T>
void expect_one_rounding() {
  const Centred sample(3);
  std::vector<T> out(sample.pixels.size());
  std::vector<float> wide(sample.pixels.size());
  const Shape shape{Centred::kRows, Centred::kColumns, 3};
  ImageWriter<T>(sample.normalization, shape, {})
      .write(sample.pixels.data(), Centred::kRows * Centred::kColumns, out.data());
  ImageWriter<float>(sample.normalization, shape, {})
      .write(sample.pixels.data(), Centred::kRows * Centred::kColumns, wide.data());
  int twice = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    EXPECT_EQ(out[i], element::store<T>(wide[i])) << i;
    const float pixel = element::load<float>(element::store<T>(sample.pixels[i] / 255.0F));
    const float mean = sample.pixels[i] / 255.0F - wide[i];
    twice += element::store<T>(pixel - mean) == out[i] ? 0 : 1;
  }
  EXPECT_GT(twice, 0) << "rounding the pixel as well gives other values";
}

TEST(MeanImage, IsSubtractedInF32FromImagesOf16Bits) {
  expect_one_rounding<bf16>();
  expect_one_rounding<f16>();
}

TEST(MeanImage, HasToFitTheImages) {
  Dataset data = synthetic_images(20, {6, 5, 3}, 4, 3);
  const MeanImage good = find_mean_image(data).image;
  for (const Shape& shape : {Shape{5, 5, 3}, Shape{6, 4, 3}, Shape{6, 5, 1}}) {
    data.mean_image =
        shared_mean({.height = shape[0],
                     .width = shape[1],
                     .channels = shape[2],
                     .values = std::vector<double>(static_cast<std::size_t>(shape.numel()), 0.5)});
    EXPECT_THROW((void)loaded_images(data), InvalidArgument) << shape;
  }
  MeanImage short_of_values = good;
  short_of_values.values.pop_back();
  data.mean_image = shared_mean(short_of_values);
  EXPECT_THROW((void)loaded_images(data), InvalidArgument);
  data.mean_image = shared_mean(good);
  EXPECT_NO_THROW((void)loaded_images(data));
  Dataset photos = evaluated_photos(std::make_shared<MadePhotos>(mixed_sizes(9)), true);
  photos.mean_image = shared_mean(find_mean_image(photos, 16).image);
  EXPECT_THROW((void)loaded_images(photos), InvalidArgument) << "batches of other shapes";
  EXPECT_THROW((void)find_mean_image(photos, 0), InvalidArgument);
  EXPECT_THROW((void)find_mean_image(Dataset{}), InvalidArgument);
  const auto all_bad =
      std::make_shared<MadePhotos>(mixed_sizes(3), std::set<std::int64_t>{0, 1, 2});
  EXPECT_THROW((void)find_mean_image(evaluated_photos(all_bad, false), 8), DataError);
}

TEST(MeanImage, IsPartOfTheFingerprint) {
  Dataset data = synthetic_images(20, {6, 5, 3}, 4, 3);
  const std::uint64_t without = fingerprint(data);
  MeanImage mean = find_mean_image(data).image;
  data.mean_image = shared_mean(mean);
  const std::uint64_t with = fingerprint(data);
  EXPECT_NE(with, without);
  mean.values[7] = std::nextafter(mean.values[7], 1.0);
  data.mean_image = shared_mean(mean);
  EXPECT_NE(fingerprint(data), with) << "one bit of one value";
}

}  // namespace
}  // namespace dkfac::data
