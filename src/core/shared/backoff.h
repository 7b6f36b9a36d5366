#pragma once

#include <chrono>
#include <thread>

namespace dkfac {

/// Pause between two polls of a wait: none at first, then offering the core, and after a while
/// without any work short sleeps. A rank that sleeps is woken promptly where ranks outnumber cores;
/// one that only yields has used up its share of the core by the time its peer has answered.
class Backoff {
 public:
  /// Polls once through `poll()`, then pauses as it seems fit.
  template <class Poll>
  void step(const Poll& poll) {
    const auto begin = Clock::now();
    poll();
    const auto end = Clock::now();
    // A poll that took long has moved data: more of it is probably ready.
    if (polls_++ == 0 || end - begin > kWork) idle_since_ = end;
    if (end - idle_since_ > kEager) {
      std::this_thread::sleep_for(kSleep);
    } else if (polls_ > kBusyPolls) {
      std::this_thread::yield();
    }
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr int kBusyPolls = 16;
  static constexpr std::chrono::microseconds kWork{10};
  static constexpr std::chrono::microseconds kEager{300};
  static constexpr std::chrono::microseconds kSleep{50};
  int polls_ = 0;
  Clock::time_point idle_since_;
};

}  // namespace dkfac
