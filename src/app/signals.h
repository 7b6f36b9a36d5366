#pragma once

namespace dkfac::app {

/// While alive, SIGINT, SIGTERM and SIGUSR1 only set a flag; the second of a kind has its usual
/// effect. A write to a closed pipe or past the file size limit is an error, not a signal.
class SignalGuard {
 public:
  SignalGuard();
  ~SignalGuard();
  SignalGuard(const SignalGuard&) = delete;
  SignalGuard& operator=(const SignalGuard&) = delete;
};

[[nodiscard]] bool stop_requested() noexcept;  ///< Since the guard was made.

}  // namespace dkfac::app
