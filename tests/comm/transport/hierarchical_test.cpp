#include "dkfac/comm/hierarchical.h"

#include <atomic>
#include <thread>

#include "dkfac/comm/in_process.h"
#include "dkfac/core/error.h"
#include "dkfac/core/stream.h"

#include "comm/conformance.h"
#include "support/near.h"

// The conformance suite over threads in two levels, and tests of the hierarchy.
namespace dkfac::comm::testing {

namespace {

int node_size(int ranks) { return ranks == 6 ? 3 : ranks == 1 ? 1 : 2; }

using HierarchyBody = std::function<void(Hierarchy)>;
void run_nodes(int size, int per_node, const HierarchyBody& body, Options options = {}) {
  run_ranks(
      size,
      [&](const std::shared_ptr<Communicator>& world) { body(make_hierarchical(world, per_node)); },
      options);
}

}  // namespace

std::vector<int> sizes() { return {1, 2, 4, 6, 8}; }

void run(int size, const Options& options, const Body& body) {
  ranks_per_node = node_size(size);
  run_nodes(
      size, ranks_per_node, [&](const Hierarchy& h) { body(*h.comm); }, options);
}

TEST(Hierarchical, SaysWhatItIs) {
  run_nodes(6, 3, [](const Hierarchy& h) {
    EXPECT_EQ(h.comm->backend(), "hierarchical");
    EXPECT_EQ(h.comm->size(), 6);
    EXPECT_EQ(h.inner->size(), 3);
    EXPECT_EQ(h.outer->size(), 2);
    EXPECT_EQ(h.comm->rank(), h.outer->rank() * 3 + h.inner->rank());
  });
}

TEST(Hierarchical, SumsAreThoseOfOneLevelButForRoundingAndEqualOnAllRanks) {
  constexpr std::int64_t kCount = 1001;
  run_nodes(8, 4, [](const Hierarchy& h) {
    std::vector<float> x = values_of<float>(h.comm->rank(), kCount);
    h.comm->all_reduce(view(x), ReduceOp::sum, Stream::cpu());
    std::vector<double> flat(static_cast<std::size_t>(kCount)), size(flat), got(x.begin(), x.end());
    for (int r = 0; r < 8; ++r)
      for (std::int64_t i = 0; i < kCount; ++i) {
        const double term = convert<float>(value(r, i));
        flat[static_cast<std::size_t>(i)] += term;
        size[static_cast<std::size_t>(i)] += std::abs(term);
      }
    // Eight terms: 8 eps of the sum of their sizes.
    for (std::size_t i = 0; i < flat.size(); ++i)
      EXPECT_LE(std::abs(got[i] - flat[i]), 8 * dkfac::testing::eps<float> * size[i]);
    std::string bits(reinterpret_cast<const char*>(x.data()), x.size() * sizeof(float));
    EXPECT_NO_THROW(require_equal(*h.comm, bits, "sums"));
  });
}

TEST(Hierarchical, AnAllReduceHandsEachNodesShareToTheOuterLevelOnce) {
  constexpr std::int64_t kCount = 24;
  for (const int per_node : {1, 2, 4}) {
    run_nodes(8, per_node, [&](const Hierarchy& h) {
      std::vector<double> x(static_cast<std::size_t>(kCount), 1);
      const auto outer = [&](const auto& call) {
        const std::uint64_t before = h.outer->bytes();
        call();
        return h.outer->bytes() - before;
      };
      const auto bytes = static_cast<std::uint64_t>(kCount * 8);
      const auto places = static_cast<std::uint64_t>(per_node);
      EXPECT_EQ(outer([&] { h.comm->all_reduce(view(x), ReduceOp::sum, Stream::cpu()); }),
                bytes / places);
      EXPECT_EQ(outer([&] { h.comm->all_reduce(view(x), ReduceOp::max, Stream::cpu()); }),
                bytes / places);
      const std::vector<std::int64_t> counts(8, 3);
      const TensorView mine = view(x).slice(0, 3 * h.comm->rank(), 3);
      EXPECT_EQ(outer([&] { h.comm->reduce_scatter_v(view(x), counts, mine, Stream::cpu()); }),
                bytes / places);
      EXPECT_EQ(outer([&] { h.comm->all_gather_v(mine, counts, view(x), Stream::cpu()); }),
                bytes / places);
      // The ranks at the root's place forward a broadcast; the others receive it from them.
      const bool passes = h.inner->rank() == 1 % per_node;
      EXPECT_EQ(outer([&] { h.comm->broadcast(view(x), 1, Stream::cpu()); }), passes ? bytes : 0);
      EXPECT_EQ(h.comm->bytes(), 5 * bytes);  // as of any communicator
    });
  }
}

TEST(Hierarchical, ABarrierWaitsForEveryRankOfEveryNode) {
  std::atomic<int> arrived = 0;
  run_nodes(6, 2, [&](const Hierarchy& h) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2 * h.comm->rank()));
    ++arrived;
    h.comm->barrier();
    EXPECT_EQ(arrived.load(), 6);
  });
}

TEST(Hierarchical, RefusesNodesOfUnequalSize) {
  run_ranks(3, [](const std::shared_ptr<Communicator>& world) {
    EXPECT_THROW((void)make_hierarchical(world, 2), InvalidArgument);
    EXPECT_THROW((void)make_hierarchical(world, 0), InvalidArgument);
    EXPECT_NO_THROW(world->barrier());
  });
  EXPECT_THROW((void)make_hierarchical(nullptr, 1), InvalidArgument);
}

TEST(Hierarchical, ANodeSizeThatIsWrongOnOneRankIsAnErrorOnAll) {
  run_ranks(4,
            [](const std::shared_ptr<Communicator>& world) {
              const std::string message = message_of<InvalidArgument>(
                  [&] { (void)make_hierarchical(world, world->rank() == 1 ? 3 : 2); });
              EXPECT_TRUE(contains(message, "number of ranks per node")) << message;
            },
            {.timeout_s = 5});
}

TEST(Hierarchical, FindsTheHostsByName) {
  run_ranks(3, [](const std::shared_ptr<Communicator>& world) {
    const Hierarchy h = make_hierarchical_by_host(world);  // threads have one host
    EXPECT_EQ(h.inner->size(), 3);
    EXPECT_EQ(h.outer->size(), 1);
    std::vector<double> x{1};
    h.comm->all_reduce(view(x), ReduceOp::sum, Stream::cpu());
    EXPECT_EQ(x[0], 3);
  });
}

/// Rank 3 does `wrong` while the others wait in an all_reduce; all get a CommError that has `part`.
void expect_failure(const std::function<void(const Hierarchy&)>& wrong, const std::string& part,
                    bool queue) {
  run_nodes(4, 2,
            [&](const Hierarchy& h) {
              std::vector<float> x(100);
              const OwnedStream stream(Device::cpu());
              const std::string message = message_of<CommError>([&] {
                if (h.comm->rank() == 3) wrong(h);
                h.comm->all_reduce(view(x), ReduceOp::sum, queue ? stream.view() : Stream::cpu(),
                                   "x");
                stream.view().synchronize();
              });
              EXPECT_TRUE(contains(message, part)) << message;
              EXPECT_TRUE(h.comm->failed());
            },
            {.timeout_s = 0.5, .check = Check::full});
}

TEST(Hierarchical, AnAbortReachesEveryRank) {
  for (const bool queue : {false, true})
    expect_failure([](const Hierarchy& h) { h.comm->abort("no more data"); }, "no more data",
                   queue);
}

TEST(Hierarchical, AFailureInsideOneNodeReachesTheOthers) {
  for (const bool queue : {false, true}) {
    // Ranks 0 and 1 wait for the other node without knowing why.
    expect_failure(
        [](const Hierarchy& h) {
          std::vector<float> y(7);
          h.comm->all_reduce(view(y), ReduceOp::sum, Stream::cpu(), "y");
        },
        "'y'", queue);
  }
}

TEST(Hierarchical, ALateRankIsATimeOutEverywhere) {
  for (const bool queue : {false, true})
    expect_failure(
        [](const Hierarchy& h) {
          while (!h.comm->failed()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        },
        "timeout_s", queue);
}

}  // namespace dkfac::comm::testing
