#pragma once

#include "dkfac/core/device.h"
#include "dkfac/core/stream.h"

namespace dkfac {

/// A point of a stream that knows when it happened: an Event takes no time. On the host it happens
/// when it is recorded.
class TimedEvent {
 public:
  explicit TimedEvent(Device device);
  ~TimedEvent();
  TimedEvent(const TimedEvent&) = delete;
  TimedEvent& operator=(const TimedEvent&) = delete;
  TimedEvent(TimedEvent&& other) noexcept;
  TimedEvent& operator=(TimedEvent&& other) noexcept;

  void record(Stream stream);       ///< May be done again.
  [[nodiscard]] bool done() const;  ///< Whether it has happened since. Never blocks.

  /// Seconds from `from` to `to`, of one device and both done(). Never blocks.
  [[nodiscard]] static double seconds(const TimedEvent& from, const TimedEvent& to);

 private:
  Device device_;
  CUevent_st* native_ = nullptr;
  double at_ = 0;  ///< On the host.
};

}  // namespace dkfac
