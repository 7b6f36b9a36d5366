// Sharing out items over threads: each once, and the same exception every time.

#include "data/worker_pool.h"

#include <cstdlib>
#include <iostream>
#include <stdexcept>
#include <string>
#include <sys/resource.h>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"

namespace dkfac::data {
namespace {

TEST(WorkerPool, DoesEachItemOnce) {
  for (const int workers : {1, 2, 5}) {
    WorkerPool pool(workers);
    EXPECT_EQ(pool.workers(), workers);
    for (const int items : {0, 1, 3, 200}) {
      std::vector<int> done(static_cast<std::size_t>(items), 0);
      std::vector<int> of_worker(static_cast<std::size_t>(workers), 0);
      pool.run(items, [&](int worker, std::int64_t item) {
        ++done[static_cast<std::size_t>(item)];
        ++of_worker[static_cast<std::size_t>(worker)];
      });
      EXPECT_EQ(done, std::vector<int>(static_cast<std::size_t>(items), 1));
      int sum = 0;
      for (const int n : of_worker) sum += n;
      EXPECT_EQ(sum, items);
    }
  }
}

TEST(WorkerPool, RethrowsTheExceptionOfTheLowestItemAndContinues) {
  WorkerPool pool(4);
  for (int round = 0; round < 50; ++round) {
    try {
      pool.run(100, [](int, std::int64_t item) {
        if (item == 17 || item == 18 || item >= 30) throw std::runtime_error(std::to_string(item));
      });
      FAIL();
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "17");
    }
    int done = 0;
    pool.run(1, [&](int, std::int64_t) { ++done; });
    EXPECT_EQ(done, 1);
  }
}

/// Starts more workers than the system allows, and writes the message.
[[noreturn]] void start_too_many() {
  const rlimit few{6, 6};  // Processes and threads of a user; there is no limit for root.
  const bool limited =
      (::getuid() != 0 || ::setuid(65534) == 0) && ::setrlimit(RLIMIT_NPROC, &few) == 0;
  try {
    const WorkerPool pool(64);
  } catch (const Error& error) {
    std::cerr << error.what();
    std::_Exit(limited ? 0 : 1);
  }
  std::_Exit(2);
}

TEST(WorkerPoolDeathTest, SaysThatThreadsCouldNotBeStarted) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(start_too_many(), ::testing::ExitedWithCode(0), "of 64 workers could be started");
}

}  // namespace
}  // namespace dkfac::data
