#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "dkfac/core/context.h"

namespace dkfac {

/// What some work enqueues on the stream of a context on a device, recorded once (a CUDA graph) and
/// put on that stream again by one launch. Streams that the work makes follow the context's, and
/// that the context's follows in turn, are recorded with it.
///
/// What is recorded is kernels with the addresses and numbers they were given, so the work
/// - must not depend on anything that the host decides anew each time;
/// - takes no new memory: everything that it keeps, and the scratch of the context, has its size
///   already. Run the same work once without recording it, just before;
/// - does not wait for the device, nor copy from or to plain host memory (pinned memory may be);
/// - may let go of memory, which others get once the recording is over.
/// All memory that it uses must stay where it is while it is replayed. The scratch of the context
/// is looked after: work that was recorded before it moved is not replayed. Convolutions by cuDNN
/// run code that goes with the thread that recorded them: once it has ended, replay them no more.
class CapturedWork {
 public:
  CapturedWork() = default;  ///< Holds nothing and fits nothing.

  /// Calls `work`, whose commands are recorded and not run; the thread may not use the device in
  /// other ways meanwhile, other threads may. Throws what `work` throws, InvalidArgument for a
  /// context of the host, and DeviceError where the work did what recorded work must not do; the
  /// context is as it was, but what `work` changed on the host stays changed.
  [[nodiscard]] static CapturedWork capture(Context& ctx, const std::function<void()>& work);

  /// The same in several parts, one after the other: `work` is given a function that ends a part
  /// and begins the next one, between two of which other work can be put on the stream.
  using Cut = std::function<void()>;
  [[nodiscard]] static std::vector<CapturedWork> capture_parts(
      Context& ctx, const std::function<void(const Cut&)>& work);

  /// Whether it may be replayed: recorded with this context, whose scratch has not moved since.
  [[nodiscard]] bool fits(const Context& ctx) const;
  /// Enqueues the work once more. Throws InvalidArgument unless it fits.
  void replay(Context& ctx) const;

 private:
  std::shared_ptr<void> graph_;  ///< Executable.
  Device device_;
  CUstream_st* stream_ = nullptr;
  std::int64_t growths_ = 0;
};

}  // namespace dkfac
