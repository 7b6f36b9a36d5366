#pragma once

#include "core/shared/profiler_range.h"

namespace dkfac::app {

/// Marks the consecutive activities of one rank as ranges for profilers.
class Profiled {
 public:
  Profiled() = default;
  ~Profiled() { leave(); }
  Profiled(const Profiled&) = delete;
  Profiled& operator=(const Profiled&) = delete;
  void enter(const char* activity) {
    leave();
    begin_range(activity);
    inside_ = true;
  }

 private:
  void leave() {
    if (inside_) end_range();
    inside_ = false;
  }
  bool inside_ = false;
};

}  // namespace dkfac::app
