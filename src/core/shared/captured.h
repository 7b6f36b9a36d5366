#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "dkfac/core/context.h"

namespace dkfac {

/// CUDA graph of work on the stream of a device context, captured once and replayed by one launch.
/// Streams that the work forks from the context's stream and joins again are captured with it.
///
/// The graph holds kernels with their arguments, so the captured work
/// - must not depend on decisions of the host that change between replays;
/// - must not allocate: its persistent memory and the scratch of the context have their final sizes
///   already. Run the same work once without capturing, just before;
/// - must not wait for the device nor copy from or to pageable host memory (pinned memory is
///   allowed);
/// - may free memory, which is reused once the capture has ended.
///
/// All memory that it uses must stay at its address while it is replayed. Work captured before the
/// scratch of the context moved is not replayed (fits()).
class CapturedWork {
 public:
  CapturedWork() = default;  ///< Holds nothing and fits no context.

  /// Calls `work` and captures its commands without running them. Meanwhile this thread must not
  /// use the device otherwise; other threads may. Throws what `work` throws, InvalidArgument for a
  /// host context, and DeviceError if the work did something that cannot be captured. The context
  /// is then unchanged, but changes of `work` to host state remain.
  [[nodiscard]] static CapturedWork capture(Context& ctx, const std::function<void()>& work);

  /// Captures work in consecutive parts. `work` receives a function that ends a part and begins the
  /// next one. Other work can be enqueued between the replays of two parts.
  using Cut = std::function<void()>;
  [[nodiscard]] static std::vector<CapturedWork> capture_parts(
      Context& ctx, const std::function<void(const Cut&)>& work);

  /// Whether it may be replayed: it was captured with this context, whose scratch has not moved.
  [[nodiscard]] bool fits(const Context& ctx) const;
  /// Enqueues the work once more. Throws InvalidArgument unless it fits.
  void replay(Context& ctx) const;

 private:
  std::shared_ptr<void> graph_;  ///< Executable.
  Device device_;
  CUstream_st* stream_ = nullptr;
  std::int64_t growths_ = 0;
};

/// Whether work of this stream is being captured instead of run.
[[nodiscard]] bool is_captured(Stream stream);

}  // namespace dkfac
