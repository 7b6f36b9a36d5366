#include "data/shared/device_data.h"

#include <cstring>
#include <memory>
#include <set>
#include <utility>

#include <gtest/gtest.h>

#include "dkfac/data/dataset.h"

#include "support/made_photos.h"
#include "support/on_device.h"
#include "support/tensors.h"

/// Batches on the device against those of Loader.
namespace dkfac::data {
namespace {

using namespace dkfac::testing;

constexpr std::int64_t kCount = 50, kDeviceBatch = 12;
constexpr AugmentOptions kAll{.pad = 3, .flip = true, .cutout = 2};

struct Kind {
  DataPlacement place;
  Device device;
};

class DeviceData : public ::testing::TestWithParam<Kind> {
 protected:
  [[nodiscard]] DeviceLoader make(const AugmentOptions& augment, DType dtype, int rank = 0,
                                  int size = 1) {
    return DeviceLoader(ctx, data, normalization_of(data),
                        {.sampler = sampler,
                         .augment = augment,
                         .rank = rank,
                         .size = size,
                         .dtype = dtype,
                         .place = GetParam().place});
  }
  [[nodiscard]] bool on_device() const { return GetParam().device.is_cuda(); }

  /// What the loader of the host gives from `first` on must come.
  void expect_epoch(DeviceLoader& loader, const AugmentOptions& augment, DType dtype,
                    std::int64_t epoch, std::int64_t first = 0, int rank = 0, int size = 1) {
    Loader host(data, normalization_of(data), sampler, rank, size, dtype, 2, augment);
    host.start_epoch(epoch, first);
    loader.start_epoch(ctx, epoch, first);
    Batch want;
    DeviceBatch got;
    while (host.next(want)) {
      ASSERT_TRUE(loader.next(ctx, got));
      EXPECT_EQ(got.global_batch, want.global_batch);
      EXPECT_EQ(got.first, want.first);
      EXPECT_EQ(got.images.device(), ctx.device());
      ASSERT_EQ(got.images.shape(), want.images.shape());
      ASSERT_EQ(got.labels.shape(), Shape{std::ssize(want.labels)});
      const std::vector<std::int32_t> labels(want.labels.begin(), want.labels.end());
      EXPECT_EQ(std::vector(got.host_labels.begin(), got.host_labels.end()), labels);
      const Tensor images = to_host(ctx, got.images), there = to_host(ctx, got.labels);
      if (labels.empty()) continue;
      EXPECT_EQ(std::vector(there.data<std::int32_t>(), there.data<std::int32_t>() + labels.size()),
                labels);
      EXPECT_EQ(std::memcmp(images.view().raw(), want.images.raw(), images.bytes()), 0);
    }
    EXPECT_FALSE(loader.next(ctx, got));
    EXPECT_FALSE(loader.next(ctx, got));
  }

  Context ctx{GetParam().device};
  Dataset data = synthetic_images(kCount, {8, 8, 3}, 10, 4);
  SamplerOptions sampler{
      .count = kCount, .global_batch = kDeviceBatch, .seed = 9, .drop_last = false};
};
INSTANTIATE_TEST_SUITE_P(Kinds, DeviceData,
                         ::testing::Values(Kind{DataPlacement::resident, Device::cuda()},
                                           Kind{DataPlacement::streamed, Device::cuda()},
                                           Kind{DataPlacement::streamed, Device::cpu()}),
                         [](const auto& param) {
                           if (!param.param.device.is_cuda()) return "host";
                           return param.param.place == DataPlacement::resident ? "resident"
                                                                               : "streamed";
                         });

TEST_P(DeviceData, HasTheBitsOfTheHostInEveryType) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16})
    for (const AugmentOptions& augment : {AugmentOptions{}, kAll}) {
      DeviceLoader loader = make(augment, dtype);
      EXPECT_EQ(loader.batches(), 5);
      for (const std::int64_t epoch : {0, 1, 7}) expect_epoch(loader, augment, dtype, epoch);
    }
}

TEST_P(DeviceData, TakesEveryKindOfAugmentation) {
  AugmentOptions zero = kAll, alternate = kAll, groups = kAll;
  zero.pad_mode = PadMode::zero;
  alternate.alternate_flip = true;
  groups.randomness = Randomness::per_group;
  for (const AugmentOptions& augment : {zero, alternate, groups}) {
    DeviceLoader loader = make(augment, DType::f32);
    for (const std::int64_t epoch : {2, 3}) expect_epoch(loader, augment, DType::f32, epoch);
  }
}

TEST_P(DeviceData, SubtractsTheMeanImage) {
  data.mean_image = std::make_shared<const MeanImage>(find_mean_image(data).image);
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    DeviceLoader loader = make(kAll, dtype);
    expect_epoch(loader, kAll, dtype, 1);
  }
  MeanImage small{.height = 8, .width = 7, .channels = 3, .values = std::vector<double>(168, 0.5)};
  data.mean_image = std::make_shared<const MeanImage>(std::move(small));
  EXPECT_THROW((void)make(kAll, DType::f32), InvalidArgument);
}

TEST_P(DeviceData, ContinuesInTheMiddleOfAnEpochAndDropsTheRest) {
  DeviceLoader loader = make(kAll, DType::f32);
  DeviceBatch batch;
  for (const std::int64_t taken : {0, 1, 2, 3}) {
    loader.start_epoch(ctx, 4);
    for (std::int64_t i = 0; i < taken; ++i) ASSERT_TRUE(loader.next(ctx, batch));
    expect_epoch(loader, kAll, DType::f32, taken % 2 == 0 ? 4 : 5, taken);
  }
}

TEST_P(DeviceData, SharesBatchesOutAmongRanks) {
  for (const int size : {2, 3, 4})
    for (int rank = 0; rank < size; ++rank) {
      DeviceLoader loader = make(kAll, DType::f32, rank, size);
      expect_epoch(loader, kAll, DType::f32, 1, 0, rank, size);
    }
}

TEST_P(DeviceData, NeitherWaitsNorAllocates) {
  if (!on_device() || !is_emulated()) GTEST_SKIP() << "counted on the emulated device";
  DeviceLoader loader = make(kAll, DType::f16);
  Tensor sum = Tensor::zeros(ctx, Shape{1}, DType::f64);
  Tensor wide = Tensor::empty(ctx, {kDeviceBatch, 8, 8, 3});
  std::set<const void*> places;
  DeviceBatch batch;
  const auto epoch = [&](std::int64_t number) {
    loader.start_epoch(ctx, number);
    while (loader.next(ctx, batch)) {
      places.insert(batch.images.raw());
      const TensorView x = wide.view().slice(0, 0, batch.images.dim(0));
      ops::cast(ctx, batch.images, x);
      ops::sum(ctx, x, sum);
      ctx.stream().synchronize();  // The agreement on a step.
    }
  };
  epoch(0);
  epoch(1);
  const std::int64_t waits = host_waits(), allocations = device_allocations();
  epoch(2);
  epoch(3);
  EXPECT_EQ(host_waits() - waits, 2 * loader.batches()) << "only those of the agreements";
  EXPECT_EQ(device_allocations(), allocations);
  EXPECT_EQ(places.size(), GetParam().place == DataPlacement::resident ? 1U : 2U);
}

TEST_P(DeviceData, BatchesMayHaveShapesOfTheirOwn) {
  data = evaluated_photos(std::make_shared<MadePhotos>(mixed_sizes(41)), true);
  sampler = {.count = 41, .global_batch = 6, .shuffle = false, .drop_last = false};
  for (const int size : {1, 2, 3})
    for (int rank = 0; rank < size; ++rank) {
      DeviceLoader loader = make({}, DType::f32, rank, size);
      expect_epoch(loader, {}, DType::f32, 0, 0, rank, size);
      const std::int64_t allocations = on_device() && is_emulated() ? device_allocations() : 0;
      std::set<std::pair<std::int64_t, std::int64_t>> shapes;
      loader.start_epoch(ctx, 1);
      for (DeviceBatch batch; loader.next(ctx, batch);)
        shapes.insert({batch.images.dim(1), batch.images.dim(2)});
      EXPECT_GT(shapes.size(), 2U);
      if (on_device() && is_emulated()) {
        EXPECT_EQ(device_allocations(), allocations);
      }
    }
}

TEST_P(DeviceData, ABatchHoldsForWorkPutBeforeTheNextOne) {
  DeviceLoader loader = make(kAll, DType::f32);
  Loader host(data, normalization_of(data), sampler, 0, 1, DType::f32, 2, kAll);
  std::vector<Tensor> kept;
  DeviceBatch batch;
  loader.start_epoch(ctx, 1);
  host.start_epoch(1);
  while (loader.next(ctx, batch)) kept.push_back(Tensor::copy_of(ctx, batch.images));  // No waits.
  Batch want;
  for (const Tensor& images : kept) {
    ASSERT_TRUE(host.next(want));
    const Tensor got = to_host(ctx, images);
    EXPECT_EQ(std::memcmp(got.view().raw(), want.images.raw(), got.bytes()), 0);
  }
}

TEST_P(DeviceData, EndsAtAnyTime) {
  for (const std::int64_t taken : {0, 1, 3}) {
    DeviceLoader loader = make(kAll, DType::f32);
    loader.start_epoch(ctx, 0);
    DeviceBatch batch;
    for (std::int64_t i = 0; i < taken; ++i) ASSERT_TRUE(loader.next(ctx, batch));
  }
}

TEST_P(DeviceData, RefusesWhatDoesNotFit) {
  DeviceLoader loader = make(kAll, DType::f32);
  DeviceBatch batch;
  EXPECT_TRUE(contains(message_of([&] { (void)loader.next(ctx, batch); }), "before start_epoch"));
  EXPECT_TRUE(contains(message_of([&] { loader.start_epoch(ctx, -1); }), "epoch is -1"));
  EXPECT_TRUE(contains(message_of([&] { loader.start_epoch(ctx, 0, 6); }), "first_batch is 6"));
  EXPECT_TRUE(contains(message_of([&] { (void)make(kAll, DType::i32); }), "dtype is i32"));
  sampler.count = 3;
  EXPECT_TRUE(contains(message_of([&] { (void)make(kAll, DType::f32); }), "counts 3 samples"));
}

TEST(ResidentBytes, AreTheSetAndItsWords) {
  const Dataset data = synthetic_images(10, {4, 4, 3}, 2, 1);
  EXPECT_EQ(resident_bytes(data, {}), 10 * (48 + 8));
  EXPECT_EQ(resident_bytes(data, {.flip = true, .randomness = Randomness::per_group}),
            10 * (48 + 28));
}

}  // namespace
}  // namespace dkfac::data
