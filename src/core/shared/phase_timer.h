#pragma once

#include <chrono>

#include "core/shared/trace.h"

namespace dkfac {

/// Adds the seconds of its lifetime to a phase and, if the phase has a name, records a span in the
/// thread's trace.
class PhaseTimer {
 public:
  explicit PhaseTimer(double& seconds, const char* name = nullptr)
      : seconds_(seconds), name_(name), start_(TraceClock::now()) {}
  ~PhaseTimer() {
    const TraceClock::time_point end = TraceClock::now();
    seconds_ += std::chrono::duration<double>(end - start_).count();
    TraceSink* sink = name_ == nullptr ? nullptr : trace_sink();
    if (sink != nullptr) sink->add_span(name_, start_, end);
  }
  PhaseTimer(const PhaseTimer&) = delete;
  PhaseTimer& operator=(const PhaseTimer&) = delete;

 private:
  double& seconds_;
  const char* name_;
  TraceClock::time_point start_;
};

}  // namespace dkfac
