#pragma once

#include <deque>
#include <map>
#include <string>
#include <utility>
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
  void mark(Stream stream, const char* activity) {
    TimedEvent event = idle_.empty() ? TimedEvent(device_) : std::move(idle_.back());
    if (!idle_.empty()) idle_.pop_back();
    event.record(stream);
    marks_.push_back({std::move(event), activity});
  }
  /// Adds the seconds up to the last completed mark.
  void collect(std::map<std::string, double>& seconds) {
    while (marks_.size() >= 2 && marks_[1].event.done()) {
      const Mark& end = marks_[1];
      if (end.activity != nullptr)
        seconds[end.activity] += TimedEvent::seconds(marks_[0].event, end.event);
      idle_.push_back(std::move(marks_.front().event));
      marks_.pop_front();
    }
  }

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
