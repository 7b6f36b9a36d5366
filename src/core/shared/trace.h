#pragma once

#include <chrono>

namespace dkfac {

using TraceClock = std::chrono::steady_clock;

/// Receives the named spans of work of one thread, e.g. "inverse". A span is told when it ends, so
/// inner spans come before the one around them. `name` lives as long as the program.
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

/// The sink of the calling thread; null when nobody listens, as at first.
[[nodiscard]] TraceSink* trace_sink() noexcept;

/// Makes `sink` that of the calling thread until the scope ends; the former one comes back then.
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
