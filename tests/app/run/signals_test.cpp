#include "app/run/signals.h"

#include <array>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <pthread.h>
#include <string>
#include <thread>
#include <unistd.h>

#include <gtest/gtest.h>

#include "support/temp_folder.h"

namespace dkfac::app {
namespace {

constexpr std::array kStops = {SIGINT, SIGTERM, SIGUSR1, SIGHUP};

void nap() { std::this_thread::sleep_for(std::chrono::milliseconds(1)); }

void wait_for_stop() {
  while (!stop_requested()) nap();
}

struct sigaction action_for(int signal) {
  struct sigaction action {};
  sigaction(signal, nullptr, &action);
  return action;
}

bool is_blocked(int signal) {
  sigset_t mask;
  pthread_sigmask(SIG_SETMASK, nullptr, &mask);
  return sigismember(&mask, signal) == 1;
}

TEST(SignalGuard, TakesASignalOfEachKindAsAFlag) {
  for (const int signal : kStops) {
    const SignalGuard guard;
    EXPECT_FALSE(stop_requested());
    kill(getpid(), signal);
    wait_for_stop();
  }
}

TEST(SignalGuard, LeavesNoOtherThreadToBeInterrupted) {
  const SignalGuard guard;
  const auto expect_blocked = [] {
    for (const int signal : kStops) EXPECT_TRUE(is_blocked(signal)) << strsignal(signal);
    EXPECT_FALSE(is_blocked(SIGALRM));
  };
  expect_blocked();
  std::thread(expect_blocked).join();
}

TEST(SignalGuard, PutsBackWhatItHasFound) {
  const auto foreign = [](int) {};
  const auto before_int = std::signal(SIGINT, foreign), before_pipe = std::signal(SIGPIPE, foreign);
  sigset_t one, before;
  sigemptyset(&one);
  sigaddset(&one, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &one, &before);
  {
    const SignalGuard guard;
    EXPECT_NE(action_for(SIGINT).sa_handler, +foreign);
    EXPECT_EQ(action_for(SIGPIPE).sa_handler, SIG_IGN);
  }
  EXPECT_EQ(action_for(SIGINT).sa_handler, +foreign);
  EXPECT_EQ(action_for(SIGPIPE).sa_handler, +foreign);
  EXPECT_EQ(action_for(SIGTERM).sa_handler, SIG_DFL);
  EXPECT_TRUE(is_blocked(SIGUSR1));
  EXPECT_FALSE(is_blocked(SIGTERM));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  std::signal(SIGINT, before_int);
  std::signal(SIGPIPE, before_pipe);
}

TEST(SignalGuard, LeavesAHangUpIgnoredAsNohupDoes) {
  const auto before = std::signal(SIGHUP, SIG_IGN);
  {
    const SignalGuard guard;
    kill(getpid(), SIGHUP);
    EXPECT_EQ(action_for(SIGHUP).sa_handler, SIG_IGN);
    kill(getpid(), SIGTERM);
    wait_for_stop();
  }
  EXPECT_EQ(action_for(SIGHUP).sa_handler, SIG_IGN);
  std::signal(SIGHUP, before);
}

void take_two(int signal) {
  const SignalGuard guard;
  kill(getpid(), signal);
  wait_for_stop();
  kill(getpid(), signal);
  for (;;) nap();
}

TEST(SignalGuardDeathTest, TheSecondOfAKindEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const int signal : kStops)
    EXPECT_EXIT(take_two(signal), ::testing::KilledBySignal(signal), "");
}

/// "SigBlk:..." and the like of a program that is started.
std::string signals_of_a_child(const std::filesystem::path& log) {
  const pid_t child = fork();
  if (child == 0) {
    if (std::freopen(log.c_str(), "w", stdout) == nullptr) _exit(1);
    restore_signals_for_exec();
    execlp("grep", "grep", "-E", "^Sig(Blk|Ign|Cgt)", "/proc/self/status", nullptr);
    _exit(1);
  }
  waitpid(child, nullptr, 0);
  std::ifstream in(log);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(SignalGuard, IsNotInheritedByProgramsThatAreStarted) {
  const testing::TempFolder folder;
  const std::string before = signals_of_a_child(folder.path() / "log");
  EXPECT_NE(before.find("SigBlk"), std::string::npos) << before;
  const SignalGuard guard;
  EXPECT_EQ(signals_of_a_child(folder.path() / "log"), before);
}

}  // namespace
}  // namespace dkfac::app
