#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include "dkfac/core/stream.h"

#include "comm/conformance.h"

namespace dkfac::comm::testing {

using QueueConformance = Conformance;

TEST_P(QueueConformance, CallsOnAQueueReturnBeforeTheyAreDone) {
  run([](Communicator& comm) {
    const OwnedStream stream(Device::cpu());
    std::vector<float> x = values_of<float>(comm.rank(), 100);
    comm.all_reduce(view(x), ReduceOp::sum, stream);
    EXPECT_EQ(x, values_of<float>(comm.rank(), 100)) << "nothing runs in the background";
    Event done;
    done.record(stream);
    EXPECT_FALSE(done.done());
    Stream::cpu().wait(done);
    EXPECT_TRUE(done.done());
    EXPECT_EQ(x, sums_of<float>(comm.size(), 100));
  });
}

TEST_P(QueueConformance, ProgressAloneCompletesSeveralOutstandingCalls) {
  run([](Communicator& comm) {
    const OwnedStream stream(Device::cpu());
    std::vector<float> x = values_of<float>(comm.rank(), 200);
    std::vector<double> y = values_of<double>(comm.rank(), 77);
    const std::vector<std::int64_t> counts = uneven_counts(comm.size());
    const std::int64_t mine = counts[static_cast<std::size_t>(comm.rank())];
    std::vector<float> part(static_cast<std::size_t>(mine), static_cast<float>(comm.rank()));
    std::vector<float> all(static_cast<std::size_t>(sum_before(counts, comm.size())), -1);
    comm.all_reduce(view(x), ReduceOp::sum, stream, "x");
    comm.broadcast(view(y), comm.size() - 1, stream, "y");
    comm.all_gather_v(view(part), counts, view(all), stream, "part");
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    bool done = false;
    while (!done && std::chrono::steady_clock::now() < limit) {
      done = comm.progress();
      std::this_thread::yield();
    }
    ASSERT_TRUE(done);
    EXPECT_EQ(x, sums_of<float>(comm.size(), 200));
    EXPECT_EQ(y, values_of<double>(comm.size() - 1, 77));
    for (int r = 0; r < comm.size(); ++r) {
      for (std::int64_t i = 0; i < counts[static_cast<std::size_t>(r)]; ++i)
        EXPECT_EQ(all[static_cast<std::size_t>(sum_before(counts, r) + i)], r);
    }
  });
}

TEST_P(QueueConformance, OneCallUsesTheResultOfTheCallBefore) {
  run([](Communicator& comm) {
    const OwnedStream stream(Device::cpu());
    std::vector<double> x{1};
    for (int i = 0; i < 4; ++i) comm.all_reduce(view(x), ReduceOp::sum, stream);
    stream.view().synchronize();
    double expected = 1;
    for (int i = 0; i < 4; ++i) expected *= comm.size();
    EXPECT_EQ(x[0], expected);
  });
}

TEST_P(QueueConformance, CallsKeepTheirOrderOverStreams) {
  run([](Communicator& comm) {
    const OwnedStream first(Device::cpu()), second(Device::cpu());
    std::vector<double> x{1};
    comm.all_reduce(view(x), ReduceOp::sum, first);
    comm.all_reduce(view(x), ReduceOp::sum, second);  // reads what the first one writes
    second.view().synchronize();
    EXPECT_EQ(x[0], comm.size() * comm.size());
    comm.all_reduce(view(x), ReduceOp::sum, first);
    comm.all_reduce(view(x), ReduceOp::sum, Stream::cpu());
    EXPECT_EQ(x[0], std::pow(comm.size(), 4));
  });
}

TEST_P(QueueConformance, RanksMayUseDifferentKindsOfStream) {
  run([](Communicator& comm) {
    const OwnedStream stream(Device::cpu());
    std::vector<float> x = values_of<float>(comm.rank(), 50);
    comm.all_reduce(view(x), ReduceOp::sum, comm.rank() % 2 == 0 ? Stream::cpu() : stream.view());
    stream.view().synchronize();
    EXPECT_EQ(x, sums_of<float>(comm.size(), 50));
  });
}

TEST_P(QueueConformance, TwoCommunicatorsShareAStream) {
  run([](Communicator& comm) {
    const auto part = comm.split(comm.rank() / 2);
    const OwnedStream stream(Device::cpu());
    std::vector<double> x{1};
    part->all_reduce(view(x), ReduceOp::sum, stream);
    comm.all_reduce(view(x), ReduceOp::sum, stream);
    stream.view().synchronize();
    double expected = 0;
    for (int r = 0; r < comm.size(); ++r) expected += std::min(2, comm.size() - r / 2 * 2);
    EXPECT_EQ(x[0], expected);
    comm.barrier();
  });
}

TEST_P(QueueConformance, ABarrierFollowsWorkOfAStream) {
  run([](Communicator& comm) {
    const OwnedStream stream(Device::cpu());
    std::vector<float> x = values_of<float>(comm.rank(), 50);
    comm.all_reduce(view(x), ReduceOp::sum, stream);
    comm.barrier();
    EXPECT_EQ(x, sums_of<float>(comm.size(), 50));
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, QueueConformance, ::testing::ValuesIn(sizes()),
                         [](const auto& test) { return std::to_string(test.param) + "Ranks"; });

}  // namespace dkfac::comm::testing
