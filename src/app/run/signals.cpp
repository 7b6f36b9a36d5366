#include "app/run/signals.h"

#include <atomic>

#include "core/shared/thread_start.h"

namespace dkfac::app {

namespace {

std::atomic<bool> stop_flag{false};
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler may set it");

constexpr std::array kStopSignals = {SIGINT, SIGTERM, SIGUSR1, SIGHUP};
constexpr std::array kIgnoredSignals = {SIGPIPE, SIGXFSZ};

/// Signal state before the guard. Static, for the child of a fork.
struct Found {
  bool any = false;
  std::array<struct sigaction, kStopSignals.size()> stop{};
  std::array<struct sigaction, kIgnoredSignals.size()> ignored{};
  sigset_t mask{};
};
Found found;

extern "C" void note_stop(int) { stop_flag.store(true, std::memory_order_relaxed); }

struct sigaction action_of(void (*handler)(int), int flags) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = flags;
  sigemptyset(&action.sa_mask);
  return action;
}

/// Returns whether a signal stays ignored, as SIGHUP under nohup. A shell without job control
/// ignores SIGINT for background processes; it is handled nevertheless, because it is then sent on
/// purpose.
bool stays_ignored(int signal, const struct sigaction& before) {
  return signal == SIGHUP && before.sa_handler == SIG_IGN;
}

void restore() {
  restore_signals_for_exec();
  found.any = false;
}

}  // namespace

SignalGuard::SignalGuard() {
  stop_flag = false;
  sigset_t stop;
  sigemptyset(&stop);
  for (std::size_t i = 0; i < kStopSignals.size(); ++i) {
    sigaction(kStopSignals[i], nullptr, &found.stop[i]);
    if (!stays_ignored(kStopSignals[i], found.stop[i])) sigaddset(&stop, kStopSignals[i]);
  }
  pthread_sigmask(SIG_BLOCK, &stop, &found.mask);
  const auto noted = action_of(note_stop, static_cast<int>(SA_RESETHAND) | SA_RESTART);
  for (const int signal : kStopSignals)
    if (sigismember(&stop, signal) == 1) sigaction(signal, &noted, nullptr);
  const auto ignored = action_of(SIG_IGN, 0);
  for (std::size_t i = 0; i < kIgnoredSignals.size(); ++i)
    sigaction(kIgnoredSignals[i], &ignored, &found.ignored[i]);
  found.any = true;
  try {
    taker_ = start_thread("signals", [this, stop] {
      pthread_sigmask(SIG_UNBLOCK, &stop, nullptr);
      over_.acquire();
    });
  } catch (...) {
    restore();
    throw;
  }
}

SignalGuard::~SignalGuard() {
  over_.release();
  taker_.join();
  restore();
}

void take_signals_until_exit() {
  static const auto* const guard = new SignalGuard;  // Never destroyed.
  (void)guard;
}

bool stop_requested() noexcept { return stop_flag.load(std::memory_order_relaxed); }

void restore_signals_for_exec() noexcept {
  if (!found.any) return;
  for (std::size_t i = 0; i < kStopSignals.size(); ++i)
    sigaction(kStopSignals[i], &found.stop[i], nullptr);
  for (std::size_t i = 0; i < kIgnoredSignals.size(); ++i)
    sigaction(kIgnoredSignals[i], &found.ignored[i], nullptr);
  pthread_sigmask(SIG_SETMASK, &found.mask, nullptr);
}

}  // namespace dkfac::app
