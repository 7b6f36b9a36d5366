#pragma once

#include <optional>

#include "dkfac/core/stream.h"

namespace dkfac::comm {

/// Keeps the device work of one communicator in the order of its calls over several CUDA streams.
class StreamOrder {
 public:
  /// `stream` follows everything so far.
  void enter(const Stream& stream) const {
    if (last_) stream.wait(*last_);
  }
  /// Blocks the host until all of it is done.
  void settle() const { enter(Stream::cpu()); }
  /// The work of a call is on `stream`.
  void leave(const Stream& stream) {
    if (!last_ || device_ != stream.device()) last_.emplace(device_ = stream.device());
    last_->record(stream);
  }

 private:
  std::optional<Event> last_;
  Device device_;
};

}  // namespace dkfac::comm
