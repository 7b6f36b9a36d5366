#pragma once

#include <chrono>

namespace dkfac {

using TraceClock = std::chrono::steady_clock;

/// Receives the named spans of work of one thread, e.g. "inverse". A span is added when it ends, so
/// inner spans come before the enclosing one. `name` lives as long as the program.
class TraceSink {
 public:
  virtual ~TraceSink() = default;
  TraceSink(const TraceSink&) = delete;
  TraceSink& operator=(const TraceSink&) = delete;
  virtual void add_span(const char* name, TraceClock::time_point begin,
                        TraceClock::time_point end) noexcept = 0;

 protected:
  TraceSink() = default;
};

/// Returns the sink of the calling thread; null without one, the default.
[[nodiscard]] TraceSink* trace_sink() noexcept;

/// Scope in which `sink` is the sink of the calling thread; restores the former one at its end.
class TraceScope {
 public:
  explicit TraceScope(TraceSink* sink) noexcept;
  ~TraceScope();
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;

 private:
  TraceSink* former_;
};

}  // namespace dkfac
