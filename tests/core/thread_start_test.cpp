#include "core/shared/thread_start.h"

#include <cstdlib>
#include <grp.h>
#include <iostream>
#include <sys/resource.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"

namespace dkfac {
namespace {

/// In a process of its own: no limit on processes binds root.
void allow_threads(rlim_t count) {
  if (getuid() == 0 && (setgroups(0, nullptr) != 0 || setgid(65534) != 0 || setuid(65534) != 0))
    std::abort();
  const rlimit limit{count, count};
  setrlimit(RLIMIT_NPROC, &limit);
}

template <class Body>
[[noreturn]] void print_error(Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    std::cerr << error.what() << std::endl;
    std::_Exit(3);
  }
  std::_Exit(0);
}

TEST(ThreadStart, NamesTheLimit) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  constexpr const char* kWhat = "for tests did not start: .*ulimit -u is 1.*; raise the limit";
  const auto start = [] { start_thread("tests", [] {}).join(); };
  EXPECT_EXIT((allow_threads(1), print_error(start)), ::testing::ExitedWithCode(3), kWhat);
  EXPECT_EXIT(print_error(start), ::testing::ExitedWithCode(0), "") << "control: there is no limit";
}

TEST(ThreadStart, TriesAllThreadsAtATime) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto two = [] { require_threads(2); };
  EXPECT_EXIT((allow_threads(1), print_error(two)), ::testing::ExitedWithCode(3),
              "OMP_NUM_THREADS");
  EXPECT_EXIT((allow_threads(1), print_error([] { require_threads(1); })),
              ::testing::ExitedWithCode(0), "")
      << "control: the calling one is there";
  EXPECT_EXIT(print_error(two), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace dkfac
