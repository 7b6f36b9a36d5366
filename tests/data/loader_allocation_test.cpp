// Inside of an epoch the loader allocates nothing, in its thread and in the caller's.

#include <set>
#include <utility>

#include <gtest/gtest.h>

#include "dkfac/data/loader.h"

#include "support/heap_count.h"
#include "support/made_photos.h"

namespace dkfac::data {
namespace {

namespace heap = testing::heap;

TEST(LoaderAllocation, HappensAtTheStartOfAnEpochOnly) {
  const Dataset data = synthetic_images(300, {8, 8, 3}, 10, 4);
  for (const Randomness randomness : {Randomness::per_sample, Randomness::per_group}) {
    Loader loader(data, normalization_of(data),
                  {.count = 300, .global_batch = 16, .drop_last = false}, 0, 2, DType::f32, 2,
                  {.pad = 2, .flip = true, .cutout = 3, .randomness = randomness});
    for (const std::int64_t epoch : {0, 1}) {
      heap::start_count();
      loader.start_epoch(epoch);
      Batch batch;
      ASSERT_TRUE(loader.next(batch));
      EXPECT_GT(heap::objects, 0) << "the order of the epoch: the count does count";
      heap::start_count();
      std::int64_t batches = 1;
      while (loader.next(batch)) ++batches;
      heap::stop_count();
      EXPECT_EQ(batches, 19);
      EXPECT_EQ(heap::objects, 0);
      EXPECT_EQ(heap::tensors, 0);
    }
  }
}

TEST(LoaderAllocation, OfBatchesWithShapesOfTheirOwnHappensInTheFirstEpochOnly) {
  const Dataset data = testing::evaluated_photos(
      std::make_shared<testing::MadePhotos>(testing::mixed_sizes(40)), true);
  Loader loader(data, normalization_of(data),
                {.count = 40, .global_batch = 6, .shuffle = false, .drop_last = false}, 0, 2,
                DType::f32);
  std::set<std::pair<std::int64_t, std::int64_t>> shapes;
  for (const std::int64_t epoch : {0, 1}) {
    loader.start_epoch(epoch);
    if (epoch == 1) heap::start_count();
    for (Batch batch; loader.next(batch);)
      shapes.insert({batch.images.dim(1), batch.images.dim(2)});
  }
  heap::stop_count();
  EXPECT_GT(shapes.size(), 2U);
  EXPECT_EQ(heap::tensors, 0);
}

}  // namespace
}  // namespace dkfac::data
