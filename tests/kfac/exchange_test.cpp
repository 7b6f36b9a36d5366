#include "kfac/exchange.h"

#include <array>

#include <gtest/gtest.h>

#include "dkfac/comm/in_process.h"
#include "dkfac/core/ops.h"

#include "kfac/pipeline.h"

namespace dkfac::kfac {
namespace {

using Counts = std::vector<std::int64_t>;

TEST(PlanExchange, LaysABucketOutByOwnerAndThenBySlot) {
  const std::vector<Slot> slots{{1, 4, 0}, {0, 2, 1}, {1, 3, 2}, {2, 1, 3}};
  const ExchangePlan plan = plan_exchange(slots, 3, 100, 0);
  ASSERT_EQ(plan.buckets.size(), 1U);
  EXPECT_EQ(plan.buckets[0].counts, (Counts{2, 7, 1}));
  EXPECT_EQ(plan.offsets, (Counts{2, 0, 6, 9}));
  EXPECT_EQ(plan.numel, 10);
  EXPECT_EQ(plan.buckets[0].time, 3);
  EXPECT_TRUE(plan.tails.empty());
}

TEST(PlanExchange, ClosesABucketOnceItIsFull) {
  const std::vector<Slot> slots{{0, 3, 0}, {1, 3, 1}, {0, 1, 2}, {1, 9, 3}, {0, 1, 4}};
  const ExchangePlan plan = plan_exchange(slots, 2, 5, 0);
  ASSERT_EQ(plan.buckets.size(), 3U);
  EXPECT_EQ(plan.buckets[0].slots, (std::vector<int>{0, 1}));
  EXPECT_EQ(plan.buckets[1].slots, (std::vector<int>{2, 3}));
  EXPECT_EQ(plan.buckets[2].slots, (std::vector<int>{4}));
  EXPECT_EQ(plan.buckets[1].first, 6);
  EXPECT_EQ(plan.buckets[2].first, 16);
  EXPECT_EQ(plan.bucket_of, (std::vector<int>{0, 0, 1, 1, 2}));
}

TEST(PlanExchange, EndsEverySegmentOfTheLastBucketInTheTail) {
  const std::vector<Slot> slots{{0, 3, 0}, {2, 2, 1}};
  const ExchangePlan plan = plan_exchange(slots, 3, 3, 5);
  ASSERT_EQ(plan.buckets.size(), 2U);
  EXPECT_EQ(plan.buckets[0].counts, (Counts{3, 0, 0}));
  EXPECT_EQ(plan.buckets[1].counts, (Counts{5, 5, 7}));
  EXPECT_EQ(plan.tails, (Counts{3, 8, 15}));
  EXPECT_EQ(plan.numel, 20);
}

TEST(PlanExchange, MakesOneBucketForATailWithoutSlots) {
  const ExchangePlan plan = plan_exchange({}, 2, 100, 4);
  ASSERT_EQ(plan.buckets.size(), 1U);
  EXPECT_EQ(plan.buckets[0].counts, (Counts{4, 4}));
  EXPECT_TRUE(plan_exchange({}, 2, 100, 0).buckets.empty());
}

std::vector<Slot> four_slots(int world) {
  std::vector<Slot> slots;
  for (int i = 0; i < 4; ++i) slots.push_back({i % world, i + 2, i});
  return slots;
}

void fill_slots(Context& ctx, Exchange& exchange, int rank) {
  for (int i = 0; i < exchange.slots(); ++i) {
    ops::fill(ctx, exchange.slot(i), 100 * (rank + 1) + i);
    exchange.mark_filled(i);
  }
}

double expected_sum(int world, int slot) { return 100.0 * world * (world + 1) / 2 + world * slot; }

class ExchangeTest : public ::testing::TestWithParam<std::tuple<int, bool, Recipients>> {};

TEST_P(ExchangeTest, SumsEverySlotWhereItIsNeededAndTakesTheVote) {
  const auto [ranks, overlap, recipients] = GetParam();
  comm::run_ranks(ranks, [&, overlap = overlap, recipients = recipients](auto comm) {
    Context ctx;
    Exchange exchange(ctx, *comm, "test", recipients, four_slots(comm->size()), DType::f64, 24,
                      kBallotElements);
    EXPECT_GT(exchange.buckets(), 1);
    Pipeline pipeline(comm, overlap);
    const std::array<Exchange*, 1> active{&exchange};
    for (int round = 0; round < 3; ++round) {
      pipeline.begin(active);
      fill_slots(ctx, exchange, comm->rank());
      pipeline.poll();
      // Without overlap nothing leaves early; with it all but the bucket with the vote does.
      EXPECT_EQ(exchange.launched(0), overlap);
      EXPECT_FALSE(exchange.launched(exchange.slots() - 1));
      Ballot ballot;
      ballot.caller.stop = comm->rank() == 0;
      const Outcome outcome = pipeline.finish(ctx, ballot);
      EXPECT_EQ(outcome.result.stop, 1);
      EXPECT_GT(pipeline.bytes(), 0U);
      for (int i = 0; i < exchange.slots(); ++i) {
        if (recipients == Recipients::owners && i % comm->size() != comm->rank()) continue;
        for (std::int64_t e = 0; e < exchange.slot(i).numel(); ++e)
          EXPECT_EQ(exchange.slot(i).template data<double>()[e], expected_sum(comm->size(), i));
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, ExchangeTest,
                         ::testing::Combine(::testing::Values(1, 2, 3, 5), ::testing::Bool(),
                                            ::testing::Values(Recipients::owners,
                                                              Recipients::all)));

TEST(Pipeline, LaunchesInOneOrderWhateverTheOrderOfFilling) {
  // Rank 1 fills the later exchange first; both must still issue the same collectives.
  comm::run_ranks(2, [](auto comm) {
    Context ctx;
    Exchange first(ctx, *comm, "first", Recipients::owners, {{0, 3, 0}, {1, 3, 1}}, DType::f32, 4,
                   0);
    Exchange second(ctx, *comm, "second", Recipients::all, {{0, 3, 2}, {0, 3, 3}}, DType::f32, 4,
                    kBallotElements);
    Pipeline pipeline(comm, true);
    const std::array<Exchange*, 2> active{&first, &second};
    pipeline.begin(active);
    std::array<Exchange*, 2> order{&first, &second};
    if (comm->rank() == 1) std::swap(order[0], order[1]);
    for (Exchange* exchange : order) {
      fill_slots(ctx, *exchange, comm->rank());
      pipeline.poll();
    }
    EXPECT_TRUE(pipeline.finish(ctx, {}).ranks_agree);
    EXPECT_EQ(second.slot(1).data<float>()[2], 302);
    if (comm->rank() == 0) {
      EXPECT_EQ(first.slot(0).data<float>()[0], 300);
    }
  });
}

TEST(Pipeline, WaitsForABucketThatIsNotFull) {
  const auto comm = comm::make_self();
  Context ctx;
  Exchange exchange(ctx, *comm, "test", Recipients::owners, {{0, 2, 0}, {0, 2, 1}, {0, 2, 2}},
                    DType::f32, 16, kBallotElements);
  Pipeline pipeline(comm, true);
  const std::array<Exchange*, 1> active{&exchange};
  pipeline.begin(active);
  exchange.mark_filled(1);
  exchange.mark_filled(2);
  pipeline.poll();
  EXPECT_FALSE(exchange.launched(0));
  exchange.mark_filled(0);
  pipeline.poll();
  EXPECT_TRUE(exchange.launched(0));
  EXPECT_TRUE(exchange.launched(1));
  EXPECT_FALSE(exchange.launched(2));
}

}  // namespace
}  // namespace dkfac::kfac
