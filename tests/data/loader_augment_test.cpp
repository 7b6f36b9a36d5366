// The loader with augmentation: one image per (seed, epoch, sample) whatever the ranks, restarts in
// the middle of an epoch, and no change without augmentation.

#include <map>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"
#include "dkfac/data/loader.h"

namespace dkfac::data {
namespace {

constexpr AugmentOptions kLoaderAugment{.pad = 3, .flip = true, .cutout = 2};

/// Labels number the samples.
Dataset numbered_images(std::int64_t count) {
  Dataset data = synthetic_images(count, {8, 8, 3}, 10, 4);
  data.classes = count;
  for (std::int64_t i = 0; i < count; ++i) {
    data.labels[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(i);
  }
  return data;
}

using Images = std::map<std::int32_t, std::vector<float>>;

void collect(Loader& loader, Images& out) {
  for (Batch batch; loader.next(batch);) {
    const float* values = batch.images.data<float>();
    const std::int64_t size = batch.images.numel() / std::max<std::int64_t>(1, batch.images.dim(0));
    for (std::size_t i = 0; i < batch.labels.size(); ++i, values += size) {
      out[batch.labels[i]] = std::vector<float>(values, values + size);
    }
  }
}

/// All images of an epoch, over all ranks.
Images epoch_of(const Dataset& data, const AugmentOptions& augment, int ranks, std::int64_t epoch,
                std::int64_t global_batch = 12, std::uint64_t seed = 9) {
  Images out;
  for (int rank = 0; rank < ranks; ++rank) {
    Loader loader(
        data, normalization_of(data),
        {.count = data.count, .global_batch = global_batch, .seed = seed, .drop_last = false}, rank,
        ranks, DType::f32, 2, augment);
    loader.start_epoch(epoch);
    collect(loader, out);
  }
  return out;
}

TEST(AugmentedLoader, GivesTheSameImagesAtEveryRankCountAndBatch) {
  const Dataset data = numbered_images(50);
  for (const Randomness randomness : {Randomness::per_sample, Randomness::per_group}) {
    AugmentOptions augment = kLoaderAugment;
    augment.randomness = randomness;
    const Images one = epoch_of(data, augment, 1, 3);
    ASSERT_EQ(one.size(), 50U);
    EXPECT_EQ(epoch_of(data, augment, 2, 3), one);
    EXPECT_EQ(epoch_of(data, augment, 4, 3), one);
    EXPECT_EQ(epoch_of(data, augment, 1, 3, 7), one) << "another batch size";
    EXPECT_NE(epoch_of(data, augment, 1, 4), one) << "another epoch";
    EXPECT_NE(epoch_of(data, augment, 1, 3, 12, 10), one) << "another seed";
  }
}

TEST(AugmentedLoader, ChangesEachSampleByItsOwnChoice) {
  const Dataset data = numbered_images(50);
  const Images plain = epoch_of(data, {}, 1, 3), changed = epoch_of(data, kLoaderAugment, 1, 3);
  int different = 0;
  for (const auto& [label, image] : plain) different += changed.at(label) != image;
  EXPECT_EQ(different, 50) << "the erased square alone changes every image";
}

TEST(AugmentedLoader, WithoutOptionsIsThePlainLoader) {
  const Dataset data = numbered_images(50);
  const SamplerOptions sampler{.count = 50, .global_batch = 12};
  Loader plain(data, normalization_of(data), sampler, 0, 1, DType::f32);
  Loader with(data, normalization_of(data), sampler, 0, 1, DType::f32, 2,
              {.pad_mode = PadMode::zero, .randomness = Randomness::per_group});
  Images a, b;
  plain.start_epoch(1);
  with.start_epoch(1);
  collect(plain, a);
  collect(with, b);
  EXPECT_EQ(a, b);
}

TEST(AugmentedLoader, ContinuesInTheMiddleOfAnEpoch) {
  const Dataset data = numbered_images(50);
  const SamplerOptions sampler{.count = 50, .global_batch = 8, .drop_last = false};
  const auto batches = [&](Loader& loader) {
    std::vector<std::vector<float>> out;
    for (Batch batch; loader.next(batch);) {
      const float* values = batch.images.data<float>();
      out.emplace_back(values, values + batch.images.numel());
    }
    return out;
  };
  Loader loader(data, normalization_of(data), sampler, 0, 1, DType::f32, 2, kLoaderAugment);
  loader.start_epoch(5);
  const auto all = batches(loader);
  ASSERT_EQ(all.size(), 7U);
  for (std::int64_t first = 0; first <= 7; ++first) {
    Loader resumed(data, normalization_of(data), sampler, 0, 1, DType::f32, 2, kLoaderAugment);
    resumed.start_epoch(5, first);
    const auto rest = batches(resumed);
    EXPECT_EQ(rest, (std::vector<std::vector<float>>(all.begin() + first, all.end()))) << first;
  }
  EXPECT_THROW(loader.start_epoch(5, 8), InvalidArgument);
  EXPECT_THROW(loader.start_epoch(5, -1), InvalidArgument);
}

TEST(AugmentedLoader, RefusesOptionsThatTheImagesCannotTake) {
  const Dataset data = numbered_images(8);
  const SamplerOptions sampler{.count = 8, .global_batch = 2};
  for (const AugmentOptions& options : {AugmentOptions{.pad = 8}, AugmentOptions{.pad = -1},
                                        AugmentOptions{.alternate_flip = true}}) {
    EXPECT_THROW(Loader(data, normalization_of(data), sampler, 0, 1, DType::f32, 2, options),
                 InvalidArgument);
  }
}

}  // namespace
}  // namespace dkfac::data
