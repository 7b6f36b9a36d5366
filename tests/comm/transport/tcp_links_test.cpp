#include <algorithm>
#include <barrier>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <mutex>
#include <set>
#include <sys/wait.h>
#include <thread>
#include <vector>

#include "dkfac/comm/tcp.h"
#include "dkfac/core/error.h"
#include "dkfac/core/stream.h"

#include "comm/conformance.h"
#include "comm/transport/crypto.h"
#include "comm/transport/sum_order.h"
#include "comm/transport/tcp_group.h"
#include "support/tcp_ranks.h"

// Which ranks are connected, and what those know of each other that are not.
namespace dkfac::comm::testing {
namespace {

constexpr int kRanks = 32;
constexpr int kEnds = 4;  ///< Open files of a link whose two ranks are threads of one process.
const Options kQuick{.timeout_s = 60};

std::set<int> partners_of(int rank, int ranks) {
  std::set<int> partners;
  for (const TreeStep& step : tree_steps(ranks, rank))
    for (const auto* messages : {&step.sent, &step.received})
      for (const TreeMessage& message : *messages) partners.insert(message.peer);
  return partners;
}

long sockets() {
  const std::filesystem::directory_iterator files("/proc/self/fd");
  return std::count_if(begin(files), end(files), [](const auto& file) {
    std::error_code gone;
    return read_symlink(file, gone).string().starts_with("socket:");
  });
}

/// Rank `from` sends its number to rank `to`.
void send_between(Communicator& comm, int from, int to) {
  const std::vector<Route> routes{{from, to, 1}};
  const std::vector<double> x(comm.rank() == from ? 1 : 0, 1.0 + from);
  std::vector<double> out(comm.rank() == to ? 1 : 0);
  comm.exchange(view_of(x.data(), {static_cast<std::int64_t>(x.size())}), routes, view(out),
                Stream::cpu(), "x");
  if (comm.rank() == to) {
    EXPECT_EQ(out, std::vector<double>{1.0 + from});
  }
}

void all_collectives(Communicator& comm) {
  comm.barrier();
  for (const int root : {0, 7, comm.size() - 1}) {
    std::vector<float> x = values_of<float>(comm.rank(), 100);
    comm.broadcast(view(x), root, Stream::cpu());
    EXPECT_EQ(x, values_of<float>(root, 100));
  }
  std::vector<float> x = values_of<float>(comm.rank(), 100);
  comm.all_reduce(view(x), ReduceOp::sum, Stream::cpu());
  EXPECT_EQ(x, sums_of<float>(comm.size(), 100));
}

}  // namespace

TEST(TcpLinks, GrowWithTheLogarithmOfTheRanksAndByNeed) {
  const long before = sockets();
  const auto expect_links = [before](long links) {
    // Each rank listens.
    EXPECT_EQ(sockets() - before - kRanks, kEnds * links);
  };
  run_tcp(kRanks, kQuick, [&](const std::shared_ptr<Communicator>& comm) {
    constexpr long kTree = kRanks * 5 / 2;  // of 496 pairs
    all_collectives(*comm);
    if (comm->rank() == 0) expect_links(kTree);
    comm->barrier();
    ASSERT_FALSE(partners_of(3, kRanks).contains(28));
    for (int i = 0; i < 2; ++i) send_between(*comm, 3, 28);
    send_between(*comm, 28, 3);
    comm->barrier();
    if (comm->rank() == 0) expect_links(kTree + 1);
    comm->barrier();
  });
}

TEST(TcpLinks, OfAFullComparisonAreThoseOfAllPairs) {
  const long before = sockets();
  run_tcp(9, {.timeout_s = 60, .check = Check::full}, [&](const auto& comm) {
    all_collectives(*comm);
    if (comm->rank() == 0) {
      EXPECT_EQ(sockets() - before - 9, kEnds * 9 * 8 / 2);
    }
    comm->barrier();
  });
}

TEST(TcpLinks, AreMadeWhileOtherWorkOfARankGoesOn) {
  // Ranks enter the exchanges in different orders of time; none waits for a connection meanwhile.
  run_tcp(12, kQuick, [](const std::shared_ptr<Communicator>& comm) {
    const OwnedStream queue(Device::cpu());
    if (comm->rank() % 3 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(30));
    for (int shift = 1; shift < 12; ++shift) {
      std::vector<Route> routes;
      for (int from = 0; from < 12; ++from) routes.push_back({from, (from + shift) % 12, 1});
      std::vector<double> x{1.0 * comm->rank()}, out(1);
      comm->exchange(view(x), routes, view(out), queue.view(), "x");
      queue.view().synchronize();
      EXPECT_EQ(out[0], (comm->rank() + 12 - shift) % 12);
    }
  });
}

TEST(TcpLinks, ByNeedProveTheSecretToo) {
  if (!has_crypto()) GTEST_SKIP() << "this build has no libcrypto";
  on_threads(10, [](int rank, std::uint16_t port) {
    const auto comm = make_tcp(rank, 10, "127.0.0.1", port, kQuick, Secret{"0123456789abcdef"});
    all_collectives(*comm);
    for (int from = 0; from < 10; ++from)
      for (int to = 0; to < 10; ++to)
        if (from != to) send_between(*comm, from, to);
  });
}

TEST(TcpLinks, AFailurePassesThroughRanksThatAreNotConnectedToIt) {
  std::barrier told(kRanks);  // None leaves before, which would tell it too.
  run_tcp(kRanks, {.timeout_s = 20}, [&](const std::shared_ptr<Communicator>& comm) {
    const std::string message = message_of<CommError>([&] {
      if (comm->rank() == 21) comm->abort("disk full");
      for (;;) comm->barrier();
    });
    EXPECT_TRUE(contains(message, "rank 21 aborted the group: disk full")) << message;
    told.arrive_and_wait();
  });
}

TEST(TcpLinks, ADeadRankIsNamedByAllOthers) {
  const std::uint16_t port = free_port();
  constexpr int kSize = 12, kDead = 7;
  const pid_t child = fork();
  if (child == 0) {  // only calls of the system and of the library under test
    const auto comm = make_tcp(kDead, kSize, "127.0.0.1", port, {.timeout_s = 60});
    comm->barrier();
    raise(SIGKILL);
  }
  ASSERT_GT(child, 0);
  std::vector<std::thread> ranks;
  std::mutex mutex;
  int named = 0;
  for (int rank = 0; rank < kSize; ++rank) {
    if (rank == kDead) continue;
    ranks.emplace_back([&, rank] {
      const std::string message = message_of<CommError>([&] {
        const auto comm = make_tcp(rank, kSize, "127.0.0.1", port, {.timeout_s = 60});
        for (;;) comm->barrier();
      });
      EXPECT_TRUE(contains(message, "rank 7 closed its connections")) << message;
      const std::scoped_lock lock(mutex);
      ++named;
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(named, kSize - 1);
  waitpid(child, nullptr, 0);
}

TEST(TcpLinks, ALateRankIsWaitedForUntilTheLimitAndNamedByWhoeverWaitsForIt) {
  constexpr int kLate = 5;
  std::vector<std::string> messages(9);
  run_tcp(9, {.timeout_s = 1}, [&](const std::shared_ptr<Communicator>& comm) {
    messages[static_cast<std::size_t>(comm->rank())] = message_of<CommError>([&] {
      while (comm->rank() == kLate) {
        (void)comm->progress();
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
      comm->barrier();
    });
  });
  for (const std::string& message : messages) {
    EXPECT_TRUE(contains(message, "waited 1 s (timeout_s) at #1 barrier")) << message;
    EXPECT_TRUE(contains(message, "or waits for another (Check::full")) << message;
  }
}

}  // namespace dkfac::comm::testing
