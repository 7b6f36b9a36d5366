// Batches with shapes of their own: every sample once, as a view made by hand shows it.

#include <numeric>

#include <gtest/gtest.h>

#include "dkfac/data/loader.h"

#include "support/made_photos.h"

namespace dkfac::testing {
namespace {

using Bytes = std::vector<std::uint8_t>;
constexpr std::int64_t kCount = 41, kBatch = 6;

data::SamplerOptions in_order(const data::Dataset& data) {
  return {.count = data.count, .global_batch = kBatch, .shuffle = false, .drop_last = false};
}

struct Shown {
  Shape shape;
  std::vector<float> image;
  std::int32_t label = -1;
  bool operator==(const Shown&) const = default;
};

/// By place in the order of the epoch.
std::vector<Shown> show(const data::Dataset& data, int ranks) {
  std::vector<Shown> out(static_cast<std::size_t>(data.count));
  std::vector<std::int64_t> numbers;  // Of batches, by rank.
  for (int rank = 0; rank < ranks; ++rank) {
    data::Loader loader(data, data::normalization_of(data), in_order(data), rank, ranks,
                        DType::f32);
    loader.start_epoch(0);
    std::int64_t number = 0;
    for (data::Batch batch; loader.next(batch); ++number) {
      const std::int64_t h = batch.images.dim(1), w = batch.images.dim(2), size = h * w * 3;
      EXPECT_EQ(batch.images.dim(0), std::ssize(batch.labels));
      for (std::size_t i = 0; i < batch.labels.size(); ++i) {
        const float* from = batch.images.data<float>() + static_cast<std::int64_t>(i) * size;
        Shown& place = out.at(static_cast<std::size_t>(number * kBatch + batch.first) + i);
        EXPECT_EQ(place.label, -1) << "a sample came twice";
        place = {{h, w, 3}, {from, from + size}, batch.labels[i]};
      }
    }
    numbers.push_back(number);
  }
  EXPECT_EQ(numbers, std::vector<std::int64_t>(static_cast<std::size_t>(ranks), 7));
  return out;
}

Shown by_hand(const MadePhotos& photos, std::int64_t sample, const data::AspectBatch& batch) {
  const data::Image& picture = photos.picture(sample);
  const data::PhotoView view =
      data::centre_crop({picture.height, picture.width}, 18, batch.height, batch.width);
  Bytes whole(static_cast<std::size_t>(view.height * view.width * 3)), scratch;
  data::resize_bilinear(picture, view.from, view.height, view.width, whole.data(), scratch);
  const data::Normalization n = data::imagenet_normalization();
  Shown out{{batch.height, batch.width, 3}, {}, photos.labels()[static_cast<std::size_t>(sample)]};
  for (std::int64_t y = 0; y < batch.height; ++y)
    for (std::int64_t x = 0; x < batch.width; ++x)
      for (std::size_t c = 0; c < 3; ++c) {
        const std::int64_t at = (view.window.y + y) * view.width + view.window.x + x;
        const double p = whole[static_cast<std::size_t>(at) * 3 + c];
        out.image.push_back(static_cast<float>((p / 255.0 - n.mean[c]) / n.stddev[c]));
      }
  return out;
}

TEST(Rectangular, EverySampleComesOnceInTheShapeOfItsBatchAtAnyNumberOfRanks) {
  const auto photos = std::make_shared<MadePhotos>(mixed_sizes(kCount));
  const data::Dataset data = evaluated_photos(photos, true);
  const data::RectangularOrder order = data::rectangular_order(mixed_sizes(kCount), kBatch, 16);
  ASSERT_NE(order.batches.front().height, order.batches.front().width);
  ASSERT_NE(order.batches.back().width, order.batches.front().width);
  for (const int ranks : {1, 2, 3}) {
    const std::vector<Shown> got = show(data, ranks);
    for (std::size_t i = 0; i < got.size(); ++i)
      EXPECT_EQ(got[i], by_hand(*photos, order.samples[i], order.batches[i / kBatch])) << i;
  }
}

TEST(Rectangular, BatchesOfSquarePicturesAreTheCentreCrops) {
  std::vector<data::ImageSize> squares;
  for (std::int64_t i = 0; i < kCount; ++i) squares.push_back({20 + i % 9, 20 + i % 9});
  const auto photos = std::make_shared<MadePhotos>(squares);
  EXPECT_TRUE(show(evaluated_photos(photos, true), 2) == show(evaluated_photos(photos, false), 2));
  for (std::size_t i = 30; i < squares.size(); ++i) squares[i].width *= 2;
  const auto other = std::make_shared<MadePhotos>(squares);
  EXPECT_FALSE(show(evaluated_photos(other, true), 2) == show(evaluated_photos(other, false), 2));
}

TEST(Rectangular, TheNextSampleTakesThePlaceOfADamagedOne) {
  const auto photos =
      std::make_shared<MadePhotos>(mixed_sizes(kCount), std::set<std::int64_t>{3, 17});
  const data::Dataset data = evaluated_photos(photos, true);
  EXPECT_EQ(data.photos->sizes[17].height, 1);
  const data::RectangularOrder order = data::rectangular_order(data.photos->sizes, kBatch, 16);
  const std::vector<Shown> got = show(data, 1);
  for (std::size_t i = 0; i < got.size(); ++i) {
    std::size_t from = i;
    while (order.samples[from] == 3 || order.samples[from] == 17) ++from;
    EXPECT_EQ(got[i], by_hand(*photos, order.samples[from], order.batches[i / kBatch])) << i;
  }
}

TEST(Rectangular, HeldOutSamplesHaveTheirOwnSizes) {
  data::DataSplits data;
  data.train = evaluated_photos(std::make_shared<MadePhotos>(mixed_sizes(60)), false);
  data.test = evaluated_photos(std::make_shared<MadePhotos>(mixed_sizes(5)), true);
  data::hold_out(data, kCount);
  const data::PhotoData& held = *data.test.photos;
  ASSERT_EQ(std::ssize(held.sizes), kCount);
  for (std::size_t i = 0; i < held.sizes.size(); ++i) {
    const data::ImageSize size = mixed_sizes(60)[static_cast<std::size_t>(held.samples[i])];
    EXPECT_EQ(held.sizes[i].height, size.height);
    EXPECT_EQ(held.sizes[i].width, size.width);
  }
  (void)show(data.test, 3);
}

TEST(Rectangular, TakesNeitherAnotherOrderNorAugmentationNorCrop) {
  const auto photos = std::make_shared<MadePhotos>(mixed_sizes(kCount));
  const data::Dataset data = evaluated_photos(photos, true);
  const auto load = [&](const data::SamplerOptions& sampler, const data::AugmentOptions& augment) {
    data::Loader(data, data::normalization_of(data), sampler, 0, 1, DType::f32, 2, augment);
  };
  data::SamplerOptions sampler = in_order(data);
  EXPECT_NO_THROW(load(sampler, {}));
  EXPECT_THROW(load(sampler, {.flip = true}), InvalidArgument);
  sampler.shuffle = true;
  EXPECT_THROW(load(sampler, {}), InvalidArgument);
  data::PhotoOptions options = data.photos->options;
  options.crop = data::PhotoCrop::random_resized;
  EXPECT_THROW((void)data::photo_dataset("made", photos, options), InvalidArgument);
}

}  // namespace
}  // namespace dkfac::testing
