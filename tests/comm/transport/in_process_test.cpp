#include "dkfac/comm/in_process.h"

#include <atomic>
#include <chrono>
#include <fstream>
#include <mutex>
#include <pthread.h>
#include <set>
#include <stdexcept>
#include <sys/resource.h>
#include <thread>
#include <unistd.h>

#include "dkfac/core/error.h"
#include "dkfac/core/stream.h"
#include "dkfac/core/threads.h"

#include "comm/conformance.h"

namespace dkfac::comm::testing {

std::vector<int> sizes() { return {1, 2, 3, 4, 9}; }

void run(int size, const Options& options, const Body& body) {
  run_ranks(
      size, [&](const std::shared_ptr<Communicator>& comm) { body(*comm); }, options);
}

TEST(InProcess, SaysWhatItIs) {
  const auto ranks = make_in_process(3);
  ASSERT_EQ(ranks.size(), 3U);
  for (int r = 0; r < 3; ++r) {
    EXPECT_EQ(ranks[static_cast<std::size_t>(r)]->rank(), r);
    EXPECT_EQ(ranks[static_cast<std::size_t>(r)]->size(), 3);
    EXPECT_EQ(ranks[static_cast<std::size_t>(r)]->backend(), "in_process");
  }
  EXPECT_THROW((void)make_in_process(0), InvalidArgument);
}

TEST(InProcess, ABarrierWaitsForEveryRank) {
  std::atomic<int> arrived = 0;
  run(4, {.timeout_s = 30}, [&](Communicator& comm) {
    for (int round = 1; round <= 20; ++round) {
      if (comm.rank() == round % 4) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      ++arrived;
      comm.barrier();
      EXPECT_GE(arrived.load(), 4 * round);
      comm.barrier();
    }
  });
}

TEST(RunRanks, GivesEachRankItsOwnThreadAndThreadCount) {
  std::mutex mutex;
  std::set<std::thread::id> ids;
  run(3, {}, [&](Communicator& comm) {
    EXPECT_EQ(threads(), 1);
    comm.barrier();
    const std::lock_guard lock(mutex);
    ids.insert(std::this_thread::get_id());
  });
  EXPECT_EQ(ids.size(), 3U);
}

TEST(RunRanks, RethrowsTheFirstFailureAndReleasesThePeers) {
  std::atomic<int> released = 0;
  const auto body = [&](const std::shared_ptr<Communicator>& comm) {
    if (comm->rank() == 2) throw std::out_of_range("rank 2 met a bad label");
    const std::string message = message_of<CommError>([&] { comm->barrier(); });
    EXPECT_TRUE(contains(message, "rank 2 aborted the group")) << message;
    EXPECT_TRUE(contains(message, "bad label")) << message;
    ++released;
    throw CommError(message);
  };
  EXPECT_THROW(run_ranks(4, body), std::out_of_range);
  EXPECT_EQ(released.load(), 3);
}

TEST(RunRanks, RethrowsWhatIsNoStandardException) {
  EXPECT_THROW(run_ranks(2,
                         [](const auto& comm) {
                           if (comm->rank() == 0) throw 7;
                           comm->barrier();
                         }),
               int);
}

/// Leaves address space for the stacks of two more threads.
class TwoMoreThreads {
 public:
  TwoMoreThreads() {
    constexpr rlim_t kStack = rlim_t{1} << 28;
    pthread_getattr_default_np(&stack_);
    pthread_attr_t large = stack_;
    pthread_attr_setstacksize(&large, kStack);
    pthread_setattr_default_np(&large);
    rlim_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    getrlimit(RLIMIT_AS, &space_);
    const rlimit limit{pages * static_cast<rlim_t>(getpagesize()) + 5 * kStack / 2,
                       space_.rlim_max};
    setrlimit(RLIMIT_AS, &limit);
  }
  ~TwoMoreThreads() {
    setrlimit(RLIMIT_AS, &space_);
    pthread_setattr_default_np(&stack_);
  }
  TwoMoreThreads(const TwoMoreThreads&) = delete;
  TwoMoreThreads& operator=(const TwoMoreThreads&) = delete;

 private:
  pthread_attr_t stack_{};
  rlimit space_{};
};

TEST(RunRanks, AThreadThatDoesNotStartIsAnErrorAndReleasesTheOthers) {
  const TwoMoreThreads limit;
  const std::string message = message_of<Error>(
      [] { run_ranks(8, [](const std::shared_ptr<Communicator>& comm) { comm->barrier(); }); });
  EXPECT_TRUE(contains(message, "of 8 did not start")) << message;
}

TEST(RunRanks, RefusesNonsense) {
  const auto nothing = [](const std::shared_ptr<Communicator>&) {};
  EXPECT_THROW(run_ranks(2, nothing, {}, 0), InvalidArgument);
  EXPECT_THROW(run_ranks(2, nothing, {.timeout_s = 0}), InvalidArgument);
}

}  // namespace dkfac::comm::testing
