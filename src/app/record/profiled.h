#pragma once

#include "core/shared/profiler_range.h"

namespace dkfac::app {

/// The phases of one rank, one after the other, as profilers see them.
class Profiled {
 public:
  Profiled() = default;
  ~Profiled() { leave(); }
  Profiled(const Profiled&) = delete;
  Profiled& operator=(const Profiled&) = delete;
  void enter(const char* phase) {
    leave();
    begin_range(phase);
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
