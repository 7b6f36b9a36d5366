#pragma once

#include <array>
#include <csignal>
#include <semaphore>
#include <thread>

namespace dkfac::app {

/// RAII guard under which SIGINT, SIGTERM and SIGUSR1, and SIGHUP if it was not ignored, only set a
/// flag; a second signal of the same kind has its usual effect. A write to a closed pipe or past
/// the file size limit is an error, not a signal.
///
/// A dedicated thread receives these signals. The creating thread blocks them, and so do all
/// threads that it starts afterwards, so create the guard before any other thread. Only one may
/// exist at a time, and the same thread must destroy it, which restores handlers and mask.
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

/// Creates a guard that lives until the process ends; for its main thread. A signal after the end
/// of a run, e.g. during MPI_Finalize, must not change the exit code.
void take_signals_until_exit();

[[nodiscard]] bool stop_requested() noexcept;  ///< Signalled since the guard was created.

/// Restores the signal state from before the guard; call it between fork and exec.
void restore_signals_for_exec() noexcept;

}  // namespace dkfac::app
