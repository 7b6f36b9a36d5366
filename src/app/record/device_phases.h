#pragma once

#include <deque>
#include <map>
#include <string>
#include <vector>

#include "core/shared/device_timer.h"

namespace dkfac::app {

/// Where the time of a device goes, by marks in the work of one stream. What other streams do
/// beside it is counted where it makes this one wait. Never makes the host wait.
class DevicePhases {
 public:
  explicit DevicePhases(Device device) : device_(device) {}

  /// What the stream was given since the last mark belongs to no phase.
  void begin(Stream stream) { mark(stream, nullptr); }
  /// It belongs to `phase`, a literal.
  void mark(Stream stream, const char* phase);
  /// Adds the seconds up to the last mark that has happened.
  void collect(std::map<std::string, double>& seconds);

 private:
  struct Mark {
    TimedEvent event;
    const char* phase;
  };
  Device device_;
  std::deque<Mark> marks_;
  std::vector<TimedEvent> idle_;
};

}  // namespace dkfac::app
