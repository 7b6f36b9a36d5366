#pragma once

#include <string_view>

#include "dkfac/core/stream.h"

/// Ordering between a caller's stream and an internal one, without a host synchronization.
namespace dkfac::comm {

/// Joins two streams by two events that are recorded repeatedly; used by one thread at a time.
class StreamJoin {
 public:
  explicit StreamJoin(Device device) : in_(device), out_(device) {}

  /// Orders later work on `ours` after the present work on `caller`. Work of a host queue is
  /// complete on return. Throws InvalidArgument, naming `operation`, for a stream of another
  /// device.
  void enter(std::string_view operation, Stream caller, Stream ours);
  /// Orders later work on `caller` after `ours`, so that it may overwrite the inputs and read the
  /// results.
  void leave(Stream caller, Stream ours);

 private:
  Event in_, out_;
};

}  // namespace dkfac::comm
