#pragma once

#include <array>
#include <csignal>
#include <semaphore>
#include <thread>

namespace dkfac::app {

/// While alive, SIGINT, SIGTERM and SIGUSR1, and SIGHUP where it was not ignored, only set a flag;
/// the second of a kind has its usual effect. A write to a closed pipe or past the file size limit
/// is an error, not a signal.
///
/// A thread of its own takes these signals. The thread that makes the guard blocks them, and so do
/// all that it starts from then on: make it before any other. One at a time, made and destroyed by
/// the same thread; handlers and mask are then what they were.
class SignalGuard {
 public:
  SignalGuard();
  ~SignalGuard();
  SignalGuard(const SignalGuard&) = delete;
  SignalGuard& operator=(const SignalGuard&) = delete;

 private:
  std::binary_semaphore over_{0};
  std::thread taker_;
};

/// A guard that ends with the process, for its main thread: a signal that comes after a run has
/// finished, while MPI is left, must not change what it ends with.
void take_signals_until_exit();

[[nodiscard]] bool stop_requested() noexcept;  ///< Since the guard was made.

/// Between fork and exec: a program that is started finds signals as the guard has found them.
void restore_signals_for_exec() noexcept;

}  // namespace dkfac::app
