// Order and sharding: every sample once, the same batches at every rank count.

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"
#include "dkfac/data/loader.h"

namespace dkfac::data {
namespace {

struct Case {
  std::int64_t count, global_batch;
  int size;
  bool drop_last;
};

std::vector<Case> cases() {
  std::vector<Case> out;
  for (const auto& [count, batch] :
       {std::pair{1, 1}, {12, 4}, {13, 4}, {10, 16}, {103, 10}, {5, 1}}) {
    for (const int size : {1, 2, 3, 4, 7}) {
      for (const bool drop_last : {false, true}) out.push_back({count, batch, size, drop_last});
    }
  }
  return out;
}

class Sharding : public ::testing::TestWithParam<Case> {
 protected:
  SamplerOptions options{.count = GetParam().count,
                         .global_batch = GetParam().global_batch,
                         .seed = 5,
                         .shuffle = true,
                         .drop_last = GetParam().drop_last};
};
INSTANTIATE_TEST_SUITE_P(Cases, Sharding, ::testing::ValuesIn(cases()), [](const auto& c) {
  return "count" + std::to_string(c.param.count) + "_batch" + std::to_string(c.param.global_batch) +
         "_ranks" + std::to_string(c.param.size) + (c.param.drop_last ? "_drop" : "_keep");
});

TEST_P(Sharding, ConcatenatedSharesAreTheGlobalBatches) {
  const auto order = epoch_order(options, 3);
  std::vector<std::int64_t> seen;
  for (std::int64_t b = 0; b < batches_per_epoch(options); ++b) {
    std::int64_t in_batch = 0;
    for (int rank = 0; rank < GetParam().size; ++rank) {
      const BatchShare share = batch_share(options, b, rank, GetParam().size);
      ASSERT_LE(share.begin + share.count, std::ssize(order));
      seen.insert(seen.end(), order.begin() + share.begin,
                  order.begin() + share.begin + share.count);
      in_batch += share.count;
    }
    const BatchShare whole = batch_share(options, b, 0, 1);
    EXPECT_EQ(in_batch, whole.global_batch);
    EXPECT_EQ(whole.count, whole.global_batch);
  }
  // Equal to the order itself, so independent of the number of ranks.
  EXPECT_TRUE(std::equal(seen.begin(), seen.end(), order.begin()));
  const std::int64_t left_out = GetParam().count - std::ssize(seen);
  EXPECT_GE(left_out, 0);
  EXPECT_LT(left_out, GetParam().drop_last ? GetParam().global_batch : 1);
}

TEST_P(Sharding, SharesDifferByAtMostOne) {
  for (std::int64_t b = 0; b < batches_per_epoch(options); ++b) {
    std::vector<std::int64_t> shares;
    for (int rank = 0; rank < GetParam().size; ++rank)
      shares.push_back(batch_share(options, b, rank, GetParam().size).count);
    const auto [low, high] = std::ranges::minmax(shares);
    EXPECT_LE(high - low, 1);
  }
}

TEST_P(Sharding, OrderHoldsEachSampleOnce) {
  auto order = epoch_order(options, 8);
  std::ranges::sort(order);
  std::vector<std::int64_t> all(static_cast<std::size_t>(GetParam().count));
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(order, all);
}

TEST(Sampler, CountsBatches) {
  EXPECT_EQ(batches_per_epoch({.count = 13, .global_batch = 4, .drop_last = true}), 3);
  EXPECT_EQ(batches_per_epoch({.count = 13, .global_batch = 4, .drop_last = false}), 4);
  EXPECT_EQ(batches_per_epoch({.count = 12, .global_batch = 4, .drop_last = false}), 3);
  EXPECT_EQ(batches_per_epoch({.count = 3, .global_batch = 4, .drop_last = true}), 0);
}

TEST(Sampler, OrderDependsOnSeedAndEpochOnly) {
  SamplerOptions options{.count = 100, .global_batch = 10, .seed = 1};
  const auto order = epoch_order(options, 2);
  EXPECT_NE(order, epoch_order(options, 3));
  options.global_batch = 32;
  options.drop_last = false;
  EXPECT_EQ(order, epoch_order(options, 2));
  options.seed = 2;
  EXPECT_NE(order, epoch_order(options, 2));
}

TEST(Sampler, ShuffledPlacesAreUniform) {
  // 4000 epochs of 10 samples: sample 0 at each place 400 times, deviation sqrt(400 * 0.9) = 19.
  const SamplerOptions options{.count = 10, .global_batch = 1, .seed = 3};
  std::vector<int> at(10, 0);
  for (std::int64_t epoch = 0; epoch < 4000; ++epoch) {
    const auto order = epoch_order(options, epoch);
    ++at[static_cast<std::size_t>(std::ranges::find(order, 0) - order.begin())];
  }
  for (const int n : at) EXPECT_NEAR(n, 400, 5 * 19);
}

TEST(Sampler, KeepsTheOrderWithoutShuffle) {
  const SamplerOptions options{.count = 5, .global_batch = 2, .shuffle = false};
  EXPECT_EQ(epoch_order(options, 4), (std::vector<std::int64_t>{0, 1, 2, 3, 4}));
}

TEST(Sampler, RefusesArgumentsOutOfRange) {
  const SamplerOptions options{.count = 8, .global_batch = 4};
  EXPECT_NO_THROW((void)batch_share(options, 1, 1, 2));
  EXPECT_THROW((void)batch_share(options, 2, 1, 2), InvalidArgument);
  EXPECT_THROW((void)batch_share(options, -1, 1, 2), InvalidArgument);
  EXPECT_THROW((void)batch_share(options, 1, 2, 2), InvalidArgument);
  EXPECT_THROW((void)batch_share(options, 1, -1, 2), InvalidArgument);
  EXPECT_THROW((void)epoch_order(options, -1), InvalidArgument);
  EXPECT_THROW((void)epoch_order({.count = 0, .global_batch = 4}, 0), InvalidArgument);
  EXPECT_THROW((void)batches_per_epoch({.count = 8, .global_batch = 0}), InvalidArgument);
}

}  // namespace
}  // namespace dkfac::data
