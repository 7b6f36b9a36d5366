#pragma once

#include <deque>
#include <map>
#include <string>
#include <vector>

#include "core/shared/device_timer.h"

namespace dkfac::app {

/// Timer of the activities of a device by events in one stream. Work on other streams counts only
/// where this stream waits for it. Never synchronizes the host.
class DeviceActivities {
 public:
  explicit DeviceActivities(Device device) : device_(device) {}

  /// Marks the work enqueued since the last mark as belonging to no activity.
  void begin(Stream stream) { mark(stream, nullptr); }
  /// Marks the work enqueued since the last mark as belonging to `activity`, a literal.
  void mark(Stream stream, const char* activity);
  /// Adds the seconds up to the last completed mark.
  void collect(std::map<std::string, double>& seconds);

 private:
  struct Mark {
    TimedEvent event;
    const char* activity;
  };
  Device device_;
  std::deque<Mark> marks_;
  std::vector<TimedEvent> idle_;
};

}  // namespace dkfac::app
