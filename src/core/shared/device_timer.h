#pragma once

#include <functional>
#include <memory>

#include "dkfac/core/context.h"
#include "dkfac/core/device.h"
#include "dkfac/core/stream.h"

namespace dkfac {

/// Event with a time stamp, for measuring time on a stream. On the host it is complete when
/// recorded.
class TimedEvent {
 public:
  explicit TimedEvent(Device device);

  void record(Stream stream);       ///< May be repeated.
  [[nodiscard]] bool done() const;  ///< Whether the last record() is complete. Never blocks.

  /// Seconds from `from` to `to`, of one device and both done(). Never blocks.
  [[nodiscard]] static double seconds(const TimedEvent& from, const TimedEvent& to);

 private:
  Device device_;
  std::unique_ptr<CUevent_st, DestroyEvent> native_;
  double at_ = 0;  ///< Time of record() on the host, in seconds.
};

/// Returns the median of three times, in seconds, that the work enqueued by `work` takes on the
/// stream of the context, after an execution that is not timed, as a first call loads code. The
/// host waits for each. Not while the stream is captured.
[[nodiscard]] double median_seconds(Context& ctx, const std::function<void()>& work);

}  // namespace dkfac
