#pragma once

#include <chrono>
#include <thread>

namespace dkfac {

/// Pauses between the polls of a wait: none at first, then it yields, and after a while without
/// progress it sleeps briefly. Where ranks outnumber cores the scheduler wakes a sleeping rank
/// promptly, whereas one that only yields has used up its time slice when its peer answers.
class Backoff {
 public:
  /// Calls `look()` once, then pauses.
  template <class Look>
  void poll(const Look& look) {
    const auto begin = Clock::now();
    look();
    const auto end = Clock::now();
    // A poll that took long has transferred data; more is probably ready.
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
