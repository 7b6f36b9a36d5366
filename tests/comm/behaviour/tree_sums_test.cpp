#include <mutex>
#include <vector>

#include "dkfac/comm/hierarchical.h"
#include "dkfac/comm/in_process.h"
#include "dkfac/core/stream.h"

#include "comm/conformance.h"
#include "support/tcp_ranks.h"

// Sums of more than 8 ranks: one tree on every backend, whatever the pieces.
namespace dkfac::comm::testing {
namespace {

using RankBody = std::function<void(const std::shared_ptr<Communicator>&)>;

template <class T>
void expect_sums(Communicator& comm, std::int64_t count) {
  std::vector<T> x = values_of<T>(comm.rank(), count);
  comm.all_reduce(view(x), ReduceOp::sum, Stream::cpu(), "x");
  EXPECT_EQ(x, sums_of<T>(comm.size(), count)) << dtype_of<T> << " of " << comm.size();
}

template <class T>
void expect_segments(Communicator& comm) {
  const std::vector<std::int64_t> counts = uneven_counts(comm.size());
  const std::int64_t total = sum_before(counts, comm.size()),
                     first = sum_before(counts, comm.rank()),
                     mine = counts[static_cast<std::size_t>(comm.rank())];
  std::vector<T> x = values_of<T>(comm.rank(), total), apart(static_cast<std::size_t>(mine));
  comm.reduce_scatter_v(view(x), counts, view(apart), Stream::cpu(), "x");
  std::vector<T> all(static_cast<std::size_t>(total));
  const std::vector<T> expected = sums_of<T>(comm.size(), total);
  EXPECT_TRUE(std::equal(apart.begin(), apart.end(), expected.begin() + first)) << dtype_of<T>;
  comm.all_gather_v(view(apart), counts, view(all), Stream::cpu(), "x");
  EXPECT_EQ(all, expected) << dtype_of<T>;
}

void expect_tree(Communicator& comm) {
  for (const std::int64_t count : {0, 1, 11, 333}) {
    expect_sums<double>(comm, count);
    expect_sums<float>(comm, count);
    expect_sums<bf16>(comm, count);
    expect_sums<f16>(comm, count);
    expect_sums<std::int32_t>(comm, count);
  }
  expect_segments<double>(comm);
  expect_segments<float>(comm);
  expect_segments<bf16>(comm);
  expect_segments<f16>(comm);
}

void run_each(int size, const RankBody& body) {
  for (const std::int64_t piece : {40, 1 << 20}) {
    run_ranks(size, body, {.timeout_s = 60, .piece_bytes = piece});
    run_tcp(size, {.timeout_s = 60, .piece_bytes = piece}, body);
  }
}

}  // namespace

TEST(TreeSums, AreTheSameOverThreadsAndTcpInPiecesOfAnyLength) {
  for (const int size : {9, 12, 16})
    run_each(size, [](const std::shared_ptr<Communicator>& comm) { expect_tree(*comm); });
}

TEST(TreeSums, DoNotDependOnOverlap) {
  run_each(10, [](const std::shared_ptr<Communicator>& comm) {
    const OwnedStream queue(Device::cpu());
    std::vector<float> x = values_of<float>(comm->rank(), 500);
    std::vector<bf16> y = values_of<bf16>(comm->rank(), 77);
    comm->all_reduce(view(x), ReduceOp::sum, queue.view());
    comm->all_reduce(view(y), ReduceOp::sum, queue.view());
    for (int i = 0; i < comm->rank(); ++i) (void)comm->progress();
    queue.view().synchronize();
    EXPECT_EQ(x, sums_of<float>(10, 500));
    EXPECT_EQ(y, sums_of<bf16>(10, 77));
  });
}

TEST(TreeSums, TakeEachLevelOfTwoByItsOwnNumberOfRanks) {
  ranks_per_node = 9;
  run_ranks(18, [](const std::shared_ptr<Communicator>& world) {
    expect_sums<float>(*make_hierarchical(world, 9).comm, 333);
  });
  ranks_per_node = 2;
  run_ranks(18, [](const std::shared_ptr<Communicator>& world) {
    expect_sums<float>(*make_hierarchical(world, 2).comm, 333);
  });
  ranks_per_node = 0;
}

TEST(TreeSums, TakeTheMaximumAndKeepNaN) {
  run_each(11, [](const std::shared_ptr<Communicator>& comm) {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    std::vector<double> x{-1.0 - comm->rank(), static_cast<double>(comm->rank()),
                          comm->rank() == 7 ? nan : 1};
    comm->all_reduce(view(x), ReduceOp::max, Stream::cpu());
    EXPECT_EQ(x[0], -1);
    EXPECT_EQ(x[1], 10);
    EXPECT_NE(x[2], x[2]);
  });
}

TEST(TreeSums, OfTwoHundredAndFiftySixThreads) {
  constexpr std::int64_t kCount = 600;
  const std::vector<float> expected = sums_of<float>(256, kCount);
  const std::vector<std::int64_t> counts(256, 2);
  run_ranks(
      256,
      [&](const std::shared_ptr<Communicator>& comm) {
        std::vector<float> x = values_of<float>(comm->rank(), kCount);
        comm->all_reduce(view(x), ReduceOp::sum, Stream::cpu());
        EXPECT_EQ(x, expected);
        std::vector<float> y = values_of<float>(comm->rank(), 512), mine(2);
        comm->reduce_scatter_v(view(y), counts, view(mine), Stream::cpu());
        EXPECT_TRUE(std::equal(mine.begin(), mine.end(), expected.begin() + 2 * comm->rank()));
      },
      {.timeout_s = 100});
}

}  // namespace dkfac::comm::testing
