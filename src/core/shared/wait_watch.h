#pragma once

#include <memory>

namespace dkfac {

/// Something that a thread looks after while it waits for a CUDA device, as a communicator does
/// whose lost peer would keep the device waiting for ever, or while it reads or makes data.
class WaitWatch {
 public:
  virtual ~WaitWatch() = default;
  WaitWatch() = default;
  WaitWatch(const WaitWatch&) = delete;
  WaitWatch& operator=(const WaitWatch&) = delete;
  /// Never blocks; throws to end the wait.
  virtual void poll() = 0;
};

/// From now on the calling thread's waits for events and streams of a device poll `watch`, until it
/// is gone, instead of blocking in the driver. Saying so again changes nothing.
void watch_waits(const std::shared_ptr<WaitWatch>& watch);

/// Whether the calling thread has watches, and a poll of all of them.
[[nodiscard]] bool has_wait_watches() noexcept;
void poll_wait_watches();

}  // namespace dkfac
