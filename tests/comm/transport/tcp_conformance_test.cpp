#include "dkfac/comm/hierarchical.h"
#include "dkfac/comm/in_process.h"
#include "dkfac/core/stream.h"

#include "comm/conformance.h"
#include "support/tcp_ranks.h"

// The conformance suite over TCP; ranks are threads that share nothing but the network.
namespace dkfac::comm::testing {

std::vector<int> sizes() { return {1, 2, 3, 5}; }

void run(int size, const Options& options, const Body& body) {
  run_tcp(size, options, [&](const std::shared_ptr<Communicator>& comm) { body(*comm); });
}

TEST(Tcp, SaysWhatItIs) {
  run_tcp(2, {}, [](const std::shared_ptr<Communicator>& comm) {
    EXPECT_EQ(comm->backend(), "tcp");
    EXPECT_EQ(comm->size(), 2);
  });
  EXPECT_TRUE(is_available("tcp"));
}

TEST(Tcp, GivesTheBitsOfTheInProcessBackend) {
  constexpr std::int64_t kCount = 2999;
  std::vector<float> of_threads;
  run_ranks(3, [&](const std::shared_ptr<Communicator>& comm) {
    std::vector<float> x = values_of<float>(comm->rank(), kCount);
    comm->all_reduce(view(x), ReduceOp::sum, Stream::cpu());
    if (comm->rank() == 0) of_threads = x;
  });
  run_tcp(3, {.piece_bytes = 64}, [&](const std::shared_ptr<Communicator>& comm) {
    std::vector<float> x = values_of<float>(comm->rank(), kCount);
    comm->all_reduce(view(x), ReduceOp::sum, Stream::cpu());
    EXPECT_EQ(x, of_threads);
  });
}

TEST(Tcp, SplitsOfSplitsAndManyCommunicatorsWork) {
  run_tcp(4, {}, [](const std::shared_ptr<Communicator>& comm) {
    for (int round = 0; round < 5; ++round) {
      const auto half = comm->split(comm->rank() % 2);
      const auto single = half->split(half->rank());
      EXPECT_EQ(single->size(), 1);
      std::vector<double> x{1};
      half->all_reduce(view(x), ReduceOp::sum, Stream::cpu());
      comm->all_reduce(view(x), ReduceOp::sum, Stream::cpu());
      EXPECT_EQ(x[0], 8);
    }
  });
}

TEST(Tcp, CarriesTwoLevels) {
  run_tcp(4, {}, [](const std::shared_ptr<Communicator>& comm) {
    const Hierarchy h = make_hierarchical(comm, 2);
    std::vector<double> x(100, comm->rank());
    h.comm->all_reduce(view(x), ReduceOp::sum, Stream::cpu());
    EXPECT_EQ(x, std::vector<double>(100, 6));
  });
}

TEST(Tcp, ARankMayFinishAndLeaveWhileItsDataIsStillOnTheWay) {
  run_tcp(2, {}, [](const std::shared_ptr<Communicator>& comm) {
    std::vector<float> x = values_of<float>(comm->rank(), 100'000);
    if (comm->rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    comm->broadcast(view(x), 0, Stream::cpu());
    EXPECT_EQ(x, values_of<float>(0, 100'000));
  });
}

}  // namespace dkfac::comm::testing
