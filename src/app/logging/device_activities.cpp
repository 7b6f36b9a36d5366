#include "app/logging/device_activities.h"

#include <utility>

namespace dkfac::app {

void DeviceActivities::mark(Stream stream, const char* activity) {
  TimedEvent event = idle_.empty() ? TimedEvent(device_) : std::move(idle_.back());
  if (!idle_.empty()) idle_.pop_back();
  event.record(stream);
  marks_.push_back({std::move(event), activity});
}

void DeviceActivities::collect(std::map<std::string, double>& seconds) {
  while (marks_.size() >= 2 && marks_[1].event.done()) {
    const Mark& end = marks_[1];
    if (end.activity != nullptr)
      seconds[end.activity] += TimedEvent::seconds(marks_[0].event, end.event);
    idle_.push_back(std::move(marks_.front().event));
    marks_.pop_front();
  }
}

}  // namespace dkfac::app
