#pragma once

#include <optional>

#include "dkfac/core/stream.h"

namespace dkfac::comm {

/// Orders the device work of one communicator by its calls over several CUDA streams.
class StreamOrder {
 public:
  /// Orders `stream` after all work so far.
  void enter(const Stream& stream) const {
    if (last_) stream.wait(*last_);
  }
  /// Blocks the host until all work is done.
  void settle() const { enter(Stream::cpu()); }
  /// Records that the work of a call is on `stream`.
  void leave(const Stream& stream) {
    if (!last_ || device_ != stream.device()) last_.emplace(device_ = stream.device());
    last_->record(stream);
  }

 private:
  std::optional<Event> last_;
  Device device_;
};

}  // namespace dkfac::comm
