#include <set>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"
#include "dkfac/data/loader.h"
#include "dkfac/data/photo_data.h"

#include "support/tensors.h"

/// Some hundred pictures that stand for any number of photographs.
namespace dkfac::data {
namespace {

using namespace dkfac::testing;

DataSource source_of(std::int64_t train, std::int64_t classes = 1000) {
  DataSource source;
  source.name = "synthetic-photos";
  source.synthetic_train = train;
  source.synthetic_test = 100;
  source.synthetic_image = Shape{20, 20, 1};
  source.synthetic_classes = classes;
  source.photos.size = 16;
  source.photo_test_resized = 18;
  return source;
}

/// Of photograph i.
std::vector<std::uint8_t> pixels_of(const Dataset& data, std::int64_t i) {
  PhotoScratch scratch;
  const PhotoSource& source = *data.photos->source;
  const ImageSize size = source.open(i, scratch);
  const ImageView view = source.decode({}, scratch);
  return {view.pixels, view.pixels + size.height * size.width * 3};
}

TEST(SyntheticPhotos, AreAsManyAsWantedInTheMemoryOfFew) {
  const DataSplits data = load_data(source_of(1'281'167));
  EXPECT_EQ(data.train.count, 1'281'167);
  EXPECT_EQ(data.train.classes, 1000);
  EXPECT_EQ(std::ssize(data.train.labels), 1'281'167);
  EXPECT_TRUE(data.train.pixels.empty());
  EXPECT_EQ(pixels_of(data.train, 7), pixels_of(data.train, 7 + 256));
  EXPECT_EQ(data.train.labels[7], data.train.labels[7 + 256]);
  EXPECT_NE(pixels_of(data.train, 7), pixels_of(data.train, 8));
  EXPECT_EQ(std::set(data.train.labels.begin(), data.train.labels.end()).size(), 10U);
}

TEST(SyntheticPhotos, OfTheTestAreOthers) {
  const DataSplits data = load_data(source_of(256));
  std::set<std::vector<std::uint8_t>> seen;
  for (std::int64_t i = 0; i < 256; ++i) seen.insert(pixels_of(data.train, i));
  EXPECT_EQ(seen.size(), 256U);
  for (std::int64_t i = 0; i < data.test.count; ++i)
    EXPECT_FALSE(seen.contains(pixels_of(data.test, i)));
}

TEST(SyntheticPhotos, ComeInBatchesAsPhotographsDo) {
  const DataSplits data = load_data(source_of(40, 12));
  Loader loader(data.train, normalization_of(data.train), {.count = 40, .global_batch = 8}, 0, 1,
                DType::f32);
  loader.start_epoch(1);
  Batch batch;
  std::int64_t samples = 0;
  while (loader.next(batch)) {
    EXPECT_EQ(batch.images.shape(), (Shape{8, 16, 16, 3}));
    samples += std::ssize(batch.labels);
  }
  EXPECT_EQ(samples, 40);
}

TEST(SyntheticPhotos, ChangeWithTheirSeed) {
  DataSource other = source_of(256);
  other.seed = 2;
  EXPECT_NE(fingerprint(load_data(other).train), fingerprint(load_data(source_of(256)).train));
  EXPECT_EQ(fingerprint(load_data(source_of(256)).train),
            fingerprint(load_data(source_of(256)).train));
  EXPECT_THROW((void)load_data(source_of(0)), InvalidArgument);
}

}  // namespace
}  // namespace dkfac::data
