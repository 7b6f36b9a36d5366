#include "comm/collective/bucketed_reduce.h"

#include <array>

#include <gtest/gtest.h>

#include "dkfac/comm/in_process.h"
#include "dkfac/core/ops.h"

#include "comm/collective/step_pipeline.h"

namespace dkfac::comm {
namespace {

using Counts = std::vector<std::int64_t>;

BucketPlan plan_of(const std::vector<Slot>& slots, const PlanOptions& options,
                   const std::vector<bool>& due = {}) {
  BucketPlan plan;
  plan_buckets(slots, due, options, plan);
  return plan;
}

template <class T>
std::vector<T> copy_of(std::span<const T> values) {
  return {values.begin(), values.end()};
}

TEST(PlanBuckets, LaysABucketOutByOwnerAndThenBySlot) {
  const std::vector<Slot> slots{{1, 4, 0}, {0, 2, 1}, {1, 3, 2}, {2, 1, 3}};
  const BucketPlan plan = plan_of(slots, {.segments = 3, .bucket_elements = 100});
  ASSERT_EQ(plan.buckets.size(), 1U);
  EXPECT_EQ(copy_of(plan.counts_of(0)), (Counts{2, 7, 1}));
  EXPECT_EQ(plan.offsets, (Counts{2, 0, 6, 9}));
  EXPECT_EQ(plan.numel, 10);
  EXPECT_EQ(plan.buckets[0].time, 3);
  EXPECT_TRUE(plan.trailers.empty());
}

TEST(PlanBuckets, ClosesABucketOnceItIsFull) {
  const std::vector<Slot> slots{{0, 3, 0}, {1, 3, 1}, {0, 1, 2}, {1, 9, 3}, {0, 1, 4}};
  const BucketPlan plan = plan_of(slots, {.segments = 2, .bucket_elements = 5});
  ASSERT_EQ(plan.buckets.size(), 3U);
  EXPECT_EQ(copy_of(plan.slots_of(0)), (std::vector<int>{0, 1}));
  EXPECT_EQ(copy_of(plan.slots_of(1)), (std::vector<int>{2, 3}));
  EXPECT_EQ(copy_of(plan.slots_of(2)), (std::vector<int>{4}));
  EXPECT_EQ(plan.buckets[1].first, 6);
  EXPECT_EQ(plan.buckets[2].first, 16);
  EXPECT_EQ(plan.bucket_of, (std::vector<int>{0, 0, 1, 1, 2}));
}

TEST(PlanBuckets, LeavesOutWhatIsNotDue) {
  const std::vector<Slot> slots{{0, 3, 0}, {1, 3, 1}, {0, 1, 2}, {1, 9, 3}, {0, 1, 4}};
  const PlanOptions options{.segments = 2, .bucket_elements = 5, .trailer = 2};
  const BucketPlan plan = plan_of(slots, options, {true, false, true, false, true});
  ASSERT_EQ(plan.buckets.size(), 1U);
  EXPECT_EQ(copy_of(plan.slots_of(0)), (std::vector<int>{0, 2, 4}));
  EXPECT_EQ(copy_of(plan.counts_of(0)), (Counts{7, 2}));
  EXPECT_EQ(plan.bucket_of, (std::vector<int>{0, -1, 0, -1, 0}));
  EXPECT_EQ(plan.numel, 9);
  // Nothing due: the trailer is still sent.
  const BucketPlan none = plan_of(slots, options, std::vector<bool>(5, false));
  ASSERT_EQ(none.buckets.size(), 1U);
  EXPECT_EQ(copy_of(none.counts_of(0)), (Counts{2, 2}));
  EXPECT_THROW((void)plan_of(slots, options, {true}), InvalidArgument);
}

TEST(PlanBuckets, KeepsItsMemoryFromStepToStep) {
  const std::vector<Slot> slots{{0, 3, 0}, {1, 3, 1}, {0, 1, 2}, {1, 9, 3}, {0, 1, 4}};
  const PlanOptions options{
      .segments = 2, .bucket_elements = 1, .trailer = 2, .separate_trailer = true};
  BucketPlan plan;
  plan_buckets(slots, {false, true, false, false, false}, options, plan);
  const auto* buckets = plan.buckets.data();
  const auto* counts = plan.counts.data();
  const auto* order = plan.order.data();
  plan_buckets(slots, {}, options, plan);
  EXPECT_EQ(plan.buckets.size(), 6U);
  EXPECT_EQ(plan.buckets.data(), buckets);
  EXPECT_EQ(plan.counts.data(), counts);
  EXPECT_EQ(plan.order.data(), order);
}

TEST(PlanBuckets, EndsEverySegmentOfTheLastBucketInTheTrailer) {
  const std::vector<Slot> slots{{0, 3, 0}, {2, 2, 1}};
  const BucketPlan plan = plan_of(slots, {.segments = 3, .bucket_elements = 3, .trailer = 5});
  ASSERT_EQ(plan.buckets.size(), 2U);
  EXPECT_EQ(copy_of(plan.counts_of(0)), (Counts{3, 0, 0}));
  EXPECT_EQ(copy_of(plan.counts_of(1)), (Counts{5, 5, 7}));
  EXPECT_EQ(plan.trailers, (Counts{3, 8, 15}));
  EXPECT_EQ(plan.numel, 20);
}

TEST(PlanBuckets, GivesTheTrailerABucketOfItsOwnOnRequest) {
  const std::vector<Slot> slots{{0, 3, 0}, {1, 2, 1}};
  const PlanOptions options{
      .segments = 2, .bucket_elements = 9, .trailer = 4, .separate_trailer = true};
  const BucketPlan plan = plan_of(slots, options);
  ASSERT_EQ(plan.buckets.size(), 2U);
  EXPECT_EQ(copy_of(plan.counts_of(0)), (Counts{3, 2}));
  EXPECT_EQ(copy_of(plan.counts_of(1)), (Counts{4, 4}));
  EXPECT_EQ(plan.buckets[1].time, 1);
  EXPECT_TRUE(plan.slots_of(1).empty());
}

TEST(PlanBuckets, MakesOneBucketForATrailerWithoutSlots) {
  const BucketPlan plan = plan_of({}, {.segments = 2, .bucket_elements = 100, .trailer = 4});
  ASSERT_EQ(plan.buckets.size(), 1U);
  EXPECT_EQ(copy_of(plan.counts_of(0)), (Counts{4, 4}));
  EXPECT_TRUE(plan_of({}, {.segments = 2}).buckets.empty());
}

std::vector<Slot> four_slots(int world) {
  std::vector<Slot> slots;
  for (int i = 0; i < 4; ++i) slots.push_back({i % world, i + 2, i});
  return slots;
}

void fill_slots(Context& ctx, BucketedReduce& reduce, int rank) {
  for (int i = 0; i < reduce.slots(); ++i) {
    if (!reduce.due(i)) continue;
    ops::fill(ctx, reduce.slot(i), 100 * (rank + 1) + i);
    reduce.mark_filled(i);
  }
}

double expected_sum(int world, int slot) { return 100.0 * world * (world + 1) / 2 + world * slot; }

bool receives(const WorkerGrid& grid, Recipients recipients, int owner) {
  if (recipients == Recipients::owners) return owner == grid.world->rank();
  return recipients == Recipients::all || grid.is_worker_of(owner);
}

struct Case {
  int ranks = 1, workers = 1;
  bool overlap = true;
  Recipients recipients = Recipients::owners;
};

class BucketedReduceTest : public ::testing::TestWithParam<Case> {};

TEST_P(BucketedReduceTest, SumsEverySlotWhereItIsNeededAndAgreesOnTheStep) {
  const Case c = GetParam();
  run_ranks(c.ranks, [&](auto comm) {
    Context ctx;
    const WorkerGrid grid = make_worker_grid(comm, static_cast<double>(c.workers) / c.ranks);
    BucketedReduce reduce(ctx, grid, "test", four_slots(comm->size()),
                          {.recipients = c.recipients,
                           .dtype = DType::f64,
                           .bucket_bytes = 24,
                           .trailer = kFlagElements});
    EXPECT_GT(reduce.buckets(), 1);
    StepPipeline pipeline(ctx, grid, c.overlap);
    const std::array<BucketedReduce*, 1> active{&reduce};
    for (int round = 0; round < 4; ++round) {
      // All slots in even rounds, the first and third in odd ones.
      const bool all = round % 2 == 0;
      reduce.begin(all ? std::vector<bool>{} : std::vector<bool>{true, false, true, false});
      pipeline.begin(active);
      fill_slots(ctx, reduce, comm->rank());
      pipeline.poll();
      // Without overlap nothing is launched early; with it, all buckets but that of the flags are.
      if (all) {
        EXPECT_EQ(reduce.launched(0), c.overlap);
      }
      EXPECT_FALSE(reduce.launched(reduce.slots() - 1));
      FlagMessage message;
      message.caller.stop = comm->rank() == 0;
      pipeline.submit(message);
      const AgreedFlags agreed = pipeline.wait();
      EXPECT_EQ(agreed.flags.stop, 1);
      EXPECT_GT(pipeline.bytes(), 0U);
      for (int i = 0; i < reduce.slots(); ++i) {
        if (!reduce.due(i)) {
          EXPECT_THROW((void)reduce.slot(i), InvalidArgument);
          continue;
        }
        if (!receives(grid, c.recipients, i % comm->size())) continue;
        for (std::int64_t e = 0; e < reduce.slot(i).numel(); ++e)
          EXPECT_EQ(reduce.slot(i).template data<double>()[e], expected_sum(comm->size(), i));
      }
    }
  });
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const bool overlap : {false, true}) {
    for (const int ranks : {1, 2, 3, 5})
      for (const Recipients recipients : {Recipients::owners, Recipients::all})
        all.push_back({ranks, 1, overlap, recipients});
    for (const int ranks : {1, 2, 3, 4, 6})
      for (int workers = 1; workers <= ranks; ++workers)
        if (ranks % workers == 0) all.push_back({ranks, workers, overlap, Recipients::workers});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Ranks, BucketedReduceTest, ::testing::ValuesIn(cases()));

TEST(StepPipeline, LaunchesInOneOrderWhateverTheOrderOfFilling) {
  // Rank 1 fills the later BucketedReduce first; both must still issue the same collectives.
  run_ranks(2, [](auto comm) {
    Context ctx;
    const WorkerGrid grid = make_worker_grid(comm, 0);
    BucketedReduce first(ctx, grid, "first", {{0, 3, 0}, {1, 3, 1}}, {.bucket_bytes = 4});
    BucketedReduce second(
        ctx, grid, "second", {{0, 3, 2}, {0, 3, 3}},
        {.recipients = Recipients::all, .bucket_bytes = 4, .trailer = kFlagElements});
    StepPipeline pipeline(ctx, grid, true);
    const std::array<BucketedReduce*, 2> active{&first, &second};
    pipeline.begin(active);
    std::array<BucketedReduce*, 2> order{&first, &second};
    if (comm->rank() == 1) std::swap(order[0], order[1]);
    for (BucketedReduce* reduce : order) {
      fill_slots(ctx, *reduce, comm->rank());
      pipeline.poll();
    }
    pipeline.submit({});
    EXPECT_TRUE(pipeline.wait().ranks_agree);
    EXPECT_EQ(second.slot(1).data<float>()[2], 302);
    if (comm->rank() == 0) {
      EXPECT_EQ(first.slot(0).data<float>()[0], 300);
    }
  });
}

TEST(StepPipeline, RefusesAStepThatHasNotBegun) {
  const auto comm = make_self();
  Context ctx;
  const WorkerGrid grid = make_worker_grid(comm, 0);
  BucketedReduce reduce(ctx, grid, "test", {{0, 2, 0}},
                        {.bucket_bytes = 16, .trailer = kFlagElements});
  StepPipeline pipeline(ctx, grid, true);
  const std::array<BucketedReduce*, 1> active{&reduce};
  pipeline.begin(active);
  fill_slots(ctx, reduce, comm->rank());
  pipeline.submit({});
  EXPECT_TRUE(pipeline.wait().ranks_agree);
  EXPECT_THROW(pipeline.submit({}), InvalidArgument);
  reduce.begin();
  pipeline.begin(active);
  fill_slots(ctx, reduce, comm->rank());
  pipeline.submit({});
  EXPECT_TRUE(pipeline.wait().ranks_agree);
}

TEST(StepPipeline, WaitsForABucketThatIsNotFull) {
  const auto comm = make_self();
  Context ctx;
  const WorkerGrid grid = make_worker_grid(comm, 0);
  BucketedReduce reduce(ctx, grid, "test", {{0, 2, 0}, {0, 2, 1}, {0, 2, 2}},
                        {.bucket_bytes = 16, .trailer = kFlagElements});
  StepPipeline pipeline(ctx, grid, true);
  const std::array<BucketedReduce*, 1> active{&reduce};
  pipeline.begin(active);
  reduce.mark_filled(1);
  reduce.mark_filled(2);
  pipeline.poll();
  EXPECT_FALSE(reduce.launched(0));
  reduce.mark_filled(0);
  pipeline.poll();
  EXPECT_TRUE(reduce.launched(0));
  EXPECT_TRUE(reduce.launched(1));
  EXPECT_FALSE(reduce.launched(2));
}

}  // namespace
}  // namespace dkfac::comm
