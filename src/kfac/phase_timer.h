#pragma once

#include <chrono>

namespace dkfac::kfac {

/// Adds the seconds of its lifetime to a phase.
class PhaseTimer {
 public:
  explicit PhaseTimer(double& seconds) : seconds_(seconds), start_(Clock::now()) {}
  ~PhaseTimer() { seconds_ += std::chrono::duration<double>(Clock::now() - start_).count(); }
  PhaseTimer(const PhaseTimer&) = delete;
  PhaseTimer& operator=(const PhaseTimer&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  double& seconds_;
  Clock::time_point start_;
};

}  // namespace dkfac::kfac
