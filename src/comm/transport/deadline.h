#pragma once

#include <chrono>

namespace dkfac::comm {

/// Time limit that starts to count with start().
class Deadline {
 public:
  explicit Deadline(double seconds) : seconds_(seconds) {}
  void start() {
    if (running_) return;
    running_ = true;
    begin_ = Clock::now();
  }
  [[nodiscard]] bool passed() const {
    return running_ && std::chrono::duration<double>(Clock::now() - begin_).count() > seconds_;
  }
  /// Seconds left; the whole limit before start().
  [[nodiscard]] double remaining() const {
    if (!running_) return seconds_;
    return seconds_ - std::chrono::duration<double>(Clock::now() - begin_).count();
  }
  [[nodiscard]] double seconds() const { return seconds_; }

 private:
  using Clock = std::chrono::steady_clock;
  double seconds_;
  bool running_ = false;
  Clock::time_point begin_;
};

}  // namespace dkfac::comm
