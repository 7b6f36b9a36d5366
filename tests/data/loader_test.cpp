// The prefetching loader: exact values, epochs, shutdown at any time, failures.

#include "dkfac/data/loader.h"

#include <cmath>
#include <memory>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"

namespace dkfac::data {
namespace {

constexpr double kEpsF32 = 0x1p-23;

/// Sample i has label i and pixels that follow from i.
Dataset numbered(std::int64_t count, std::int64_t channels = 1) {
  Dataset data;
  data.name = "numbered";
  data.count = count;
  data.height = 2;
  data.width = 3;
  data.channels = channels;
  data.classes = count;
  for (std::int64_t i = 0; i < count; ++i) {
    data.labels.push_back(static_cast<std::int32_t>(i));
    for (std::int64_t j = 0; j < data.image_size(); ++j) {
      data.pixels.push_back(static_cast<std::uint8_t>((31 * i + 7 * j) % 256));
    }
  }
  return data;
}

Normalization unit(std::int64_t channels = 1) {
  const auto n = static_cast<std::size_t>(channels);
  return {std::vector<double>(n, 0.0), std::vector<double>(n, 1.0)};
}

std::vector<std::int32_t> labels_of_epoch(Loader& loader) {
  std::vector<std::int32_t> out;
  for (Batch batch; loader.next(batch);) {
    out.insert(out.end(), batch.labels.begin(), batch.labels.end());
  }
  return out;
}

template <class T>
void expect_normalised(const Dataset& data, const Normalization& n, const Batch& batch,
                       double tolerance) {
  const T* values = batch.images.data<T>();
  const auto size = static_cast<std::size_t>(data.image_size());
  const auto channels = static_cast<std::size_t>(data.channels);
  for (std::size_t i = 0; i < batch.labels.size(); ++i) {
    for (std::size_t j = 0; j < size; ++j) {
      const std::size_t c = j % channels;
      const double pixel = data.pixels[static_cast<std::size_t>(batch.labels[i]) * size + j];
      const double expected = (pixel / 255.0 - n.mean[c]) / n.stddev[c];
      EXPECT_NEAR(values[i * size + j], expected, tolerance) << "image " << i << " value " << j;
    }
  }
}

TEST(Loader, DeliversNormalisedImagesAndTheirLabels) {
  for (const std::int64_t channels : {1, 3}) {
    const Dataset data = numbered(20, channels);
    const Normalization n = normalization_of(data);
    const SamplerOptions options{.count = 20, .global_batch = 6, .drop_last = false};
    Loader single(data, n, options, 0, 1, DType::f32);
    Loader precise(data, n, options, 0, 1, DType::f64);
    single.start_epoch(0);
    precise.start_epoch(0);
    std::int64_t left = 20;
    for (Batch a, b; single.next(a);) {
      ASSERT_TRUE(precise.next(b));
      const std::int64_t expected = std::min<std::int64_t>(left, 6);
      EXPECT_EQ(a.images.shape(), (Shape{expected, 2, 3, channels}));
      EXPECT_EQ(a.global_batch, expected);
      EXPECT_TRUE(a.images.is_contiguous());
      // |value| < 4: one rounding to float is at most 4 * eps / 2.
      expect_normalised<float>(data, n, a, 2 * kEpsF32);
      expect_normalised<double>(data, n, b, 0.0);
      left -= expected;
    }
    EXPECT_EQ(left, 0);
  }
}

TEST(Loader, FollowsTheSampler) {
  const Dataset data = numbered(23);
  const SamplerOptions options{.count = 23, .global_batch = 5, .seed = 9, .drop_last = false};
  for (const int size : {1, 2, 4, 7}) {
    for (int rank = 0; rank < size; ++rank) {
      Loader loader(data, unit(), options, rank, size, DType::f32);
      for (const std::int64_t epoch : {0, 1}) {
        const auto order = epoch_order(options, epoch);
        loader.start_epoch(epoch);
        Batch batch;
        for (std::int64_t b = 0; b < batches_per_epoch(options); ++b) {
          const BatchIndices expected = batch_indices(options, order, b, rank, size);
          ASSERT_TRUE(loader.next(batch));
          EXPECT_EQ(std::vector<std::int64_t>(batch.labels.begin(), batch.labels.end()),
                    expected.samples);
          EXPECT_EQ(batch.images.dim(0), std::ssize(expected.samples));
          EXPECT_EQ(batch.global_batch, expected.global_batch);
          if (batch.labels.empty()) continue;
          const auto place = static_cast<std::size_t>(b * options.global_batch + batch.first);
          EXPECT_EQ(order[place], batch.labels[0]);
        }
        EXPECT_FALSE(loader.next(batch));
        EXPECT_FALSE(loader.next(batch)) << "the end stays the end";
      }
    }
  }
}

TEST(Loader, GivesEmptyBatchesToRanksWithoutAShare) {
  const Dataset data = numbered(4);
  Loader loader(data, unit(), {.count = 4, .global_batch = 2}, 3, 4, DType::f32);
  loader.start_epoch(0);
  Batch batch;
  ASSERT_TRUE(loader.next(batch));
  EXPECT_EQ(batch.images.shape(), (Shape{0, 2, 3, 1}));
  EXPECT_FALSE(batch.images.empty());
  EXPECT_TRUE(batch.labels.empty());
  EXPECT_EQ(batch.global_batch, 2);
}

TEST(Loader, StartsAnyEpochAtAnyTime) {
  const Dataset data = numbered(40);
  const SamplerOptions options{.count = 40, .global_batch = 4};
  Loader loader(data, unit(), options, 0, 1, DType::f32, 3);
  Loader fresh(data, unit(), options, 0, 1, DType::f32);
  fresh.start_epoch(7);
  const auto expected = labels_of_epoch(fresh);
  Batch batch;
  for (int taken = 0; taken <= 10; ++taken) {
    loader.start_epoch(taken);
    for (int b = 0; b < taken; ++b) ASSERT_TRUE(loader.next(batch));
    loader.start_epoch(100);
    loader.start_epoch(7);
    EXPECT_EQ(labels_of_epoch(loader), expected) << "after " << taken << " batches";
  }
}

TEST(Loader, LeavesTheBatchAloneUntilTheNextCall) {
  const Dataset data = numbered(64);
  Loader loader(data, unit(), {.count = 64, .global_batch = 2}, 0, 1, DType::f32, 1);
  loader.start_epoch(0);
  for (Batch batch; loader.next(batch);) {
    const std::vector<std::int32_t> before(batch.labels.begin(), batch.labels.end());
    for (int i = 0; i < 100; ++i) std::this_thread::yield();  // The thread works meanwhile.
    EXPECT_EQ(std::vector<std::int32_t>(batch.labels.begin(), batch.labels.end()), before);
    expect_normalised<float>(data, unit(), batch, kEpsF32);
  }
}

TEST(Loader, EndsCleanlyAtAnyMoment) {
  const Dataset data = numbered(50);
  for (int taken = 0; taken < 60; ++taken) {
    auto loader =
        std::make_unique<Loader>(data, unit(), SamplerOptions{.count = 50, .global_batch = 1}, 0, 1,
                                 DType::f64, 1 + taken % 4);
    if (taken > 0) loader->start_epoch(taken);
    Batch batch;
    for (int b = 1; b < taken; ++b) EXPECT_EQ(loader->next(batch), b <= 50);
    loader.reset();
  }
}

TEST(Loader, PassesOnTheExceptionOfItsThread) {
  Dataset data = numbered(8);
  Loader loader(data, unit(), {.count = 8, .global_batch = 2}, 0, 1, DType::f32);
  const auto label = data.labels.back();
  data.labels.pop_back();
  loader.start_epoch(0);
  Batch batch;
  EXPECT_THROW((void)loader.next(batch), DataError);
  EXPECT_THROW((void)loader.next(batch), DataError) << "a failed epoch stays failed";
  data.labels.push_back(label);
  loader.start_epoch(1);
  EXPECT_EQ(labels_of_epoch(loader).size(), 8U) << "a new epoch starts anew";
}

TEST(Loader, SurvivesAnEarlyEndAfterAnException) {
  Dataset data = numbered(8);
  Loader loader(data, unit(), {.count = 8, .global_batch = 2}, 0, 1, DType::f32);
  data.pixels.clear();
  loader.start_epoch(0);
}

TEST(Loader, RefusesOptionsThatDoNotFit) {
  const Dataset data = numbered(8);
  const SamplerOptions good{.count = 8, .global_batch = 2};
  const auto make = [&](const Normalization& n, const SamplerOptions& options, int rank, int size,
                        DType dtype, int prefetch) {
    const Loader loader(data, n, options, rank, size, dtype, prefetch);
  };
  EXPECT_NO_THROW(make(unit(), good, 0, 1, DType::f32, 2));
  EXPECT_THROW(make(unit(2), good, 0, 1, DType::f32, 2), InvalidArgument);
  EXPECT_THROW(make({{0.0}, {0.0}}, good, 0, 1, DType::f32, 2), InvalidArgument);
  EXPECT_THROW(make({{0.0}, {NAN}}, good, 0, 1, DType::f32, 2), InvalidArgument);
  EXPECT_THROW(make(unit(), {.count = 9, .global_batch = 2}, 0, 1, DType::f32, 2), InvalidArgument);
  EXPECT_THROW(make(unit(), {.count = 8, .global_batch = 9}, 0, 1, DType::f32, 2), InvalidArgument);
  EXPECT_THROW(make(unit(), good, 1, 1, DType::f32, 2), InvalidArgument);
  EXPECT_THROW(make(unit(), good, 0, 1, DType::i32, 2), InvalidArgument);
  EXPECT_THROW(make(unit(), good, 0, 1, DType::f32, 0), InvalidArgument);
  Loader loader(data, unit(), good, 0, 1, DType::f32);
  Batch batch;
  EXPECT_THROW((void)loader.next(batch), InvalidArgument) << "no epoch was started";
  EXPECT_THROW(loader.start_epoch(-1), InvalidArgument);
}

}  // namespace
}  // namespace dkfac::data
