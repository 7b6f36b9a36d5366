#include "core/shared/device_timer.h"

#include <algorithm>
#include <array>
#include <chrono>

#include "core/cuda/measure.h"
#include "core/cuda/runtime.h"

namespace dkfac {

TimedEvent::TimedEvent(Device device)
    : device_(device),
      native_(device.is_cuda() ? cuda::create_timed_event(device) : nullptr, {device}) {}

void TimedEvent::record(Stream stream) {
  if (native_ != nullptr) return cuda::record(device_, native_.get(), stream.native());
  at_ = std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

bool TimedEvent::done() const { return native_ == nullptr || cuda::done(device_, native_.get()); }

double TimedEvent::seconds(const TimedEvent& from, const TimedEvent& to) {
  if (from.native_ == nullptr) return to.at_ - from.at_;
  return cuda::seconds_between(from.device_, from.native_.get(), to.native_.get());
}

double median_seconds(Context& ctx, const std::function<void()>& work) {
  TimedEvent from(ctx.device()), to(ctx.device());
  std::array<double, 3> seconds{};
  work();
  for (double& each : seconds) {
    from.record(ctx.stream());
    work();
    to.record(ctx.stream());
    ctx.stream().synchronize();
    each = TimedEvent::seconds(from, to);
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds[1];
}

}  // namespace dkfac
