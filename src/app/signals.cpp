#include "app/signals.h"

#include <atomic>
#include <csignal>

namespace dkfac::app {

namespace {

std::atomic<bool> stop_flag{false};
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler may set it");

constexpr int kStopSignals[] = {SIGINT, SIGTERM, SIGUSR1};
constexpr int kIgnoredSignals[] = {SIGPIPE, SIGXFSZ};

extern "C" void note_stop(int) { stop_flag.store(true, std::memory_order_relaxed); }

void install(int signal, void (*handler)(int), int flags) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = flags;
  sigemptyset(&action.sa_mask);
  sigaction(signal, &action, nullptr);
}

}  // namespace

SignalGuard::SignalGuard() {
  stop_flag = false;
  for (const int signal : kStopSignals)
    install(signal, note_stop, static_cast<int>(SA_RESETHAND) | SA_RESTART);
  for (const int signal : kIgnoredSignals) install(signal, SIG_IGN, 0);
}

SignalGuard::~SignalGuard() {
  for (const int signal : kStopSignals) install(signal, SIG_DFL, 0);
  for (const int signal : kIgnoredSignals) install(signal, SIG_DFL, 0);
}

bool stop_requested() noexcept { return stop_flag.load(std::memory_order_relaxed); }

}  // namespace dkfac::app
