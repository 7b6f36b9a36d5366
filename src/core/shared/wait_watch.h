#pragma once

#include <memory>

namespace dkfac {

/// Check that a thread polls while it waits for a CUDA device, or while it reads or makes data. A
/// communicator detects lost peers by it, for which the device would wait forever.
class WaitWatch {
 public:
  virtual ~WaitWatch() = default;
  WaitWatch() = default;
  WaitWatch(const WaitWatch&) = delete;
  WaitWatch& operator=(const WaitWatch&) = delete;
  /// Checks once without blocking; throws to end the wait.
  virtual void poll() = 0;
};

/// Makes the calling thread's waits for events and streams of a device poll `watch` while it
/// exists, instead of blocking in the driver. Repeated calls with one watch have no effect.
void watch_waits(const std::shared_ptr<WaitWatch>& watch);

/// Whether the calling thread has watches.
[[nodiscard]] bool has_wait_watches() noexcept;
/// Polls all watches of the calling thread.
void poll_wait_watches();

}  // namespace dkfac
