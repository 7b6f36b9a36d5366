#pragma once

#include <string_view>

#include "dkfac/core/stream.h"

/// The order between a caller's stream and ours, without a wait of the host on a device.
namespace dkfac::comm {

/// Two events that are recorded again and again: one thread joins two streams at a time.
class StreamJoin {
 public:
  explicit StreamJoin(Device device) : in_(device), out_(device) {}

  /// Our later work follows what is on the caller's stream now. Work of a host queue is done when
  /// it returns. Throws InvalidArgument, naming `operation`, for a stream of another device.
  void enter(std::string_view operation, Stream caller, Stream ours);
  /// The caller's later work follows ours, so that it may overwrite what we have read and read what
  /// we have written.
  void leave(Stream caller, Stream ours);

 private:
  Event in_, out_;
};

}  // namespace dkfac::comm
