#pragma once

#include "dkfac/core/device.h"
#include "dkfac/core/stream.h"

namespace dkfac {

/// Event with a time stamp, for measuring time on a stream. On the host it is complete when
/// recorded.
class TimedEvent {
 public:
  explicit TimedEvent(Device device);
  ~TimedEvent();
  TimedEvent(const TimedEvent&) = delete;
  TimedEvent& operator=(const TimedEvent&) = delete;
  TimedEvent(TimedEvent&& other) noexcept;
  TimedEvent& operator=(TimedEvent&& other) noexcept;

  void record(Stream stream);       ///< May be repeated.
  [[nodiscard]] bool done() const;  ///< Whether the last record() is complete. Never blocks.

  /// Seconds from `from` to `to`, of one device and both done(). Never blocks.
  [[nodiscard]] static double seconds(const TimedEvent& from, const TimedEvent& to);

 private:
  Device device_;
  CUevent_st* native_ = nullptr;
  double at_ = 0;  ///< Time of record() on the host, in seconds.
};

}  // namespace dkfac
