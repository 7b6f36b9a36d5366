#pragma once

#include <span>
#include <vector>

#include "dkfac/core/stream.h"

#include "comm/collective/bucketed_reduce.h"
#include "comm/collective/flag_message.h"
#include "comm/collective/host_device_pair.h"
#include "comm/collective/stream_join.h"

namespace dkfac::comm {

/// Launches the buckets of several BucketedReduces in one order that is the same on every rank,
/// regardless of the order in which they fill. The last bucket carries the agreement on the step.
class StepPipeline {
 public:
  /// overlap: poll() launches buckets on a communication stream; otherwise submit() launches all of
  /// them on the context's stream.
  StepPipeline(Context& ctx, WorkerGrid grid, bool overlap);

  /// Starts an iteration of these BucketedReduces, whose begin() was called. Exactly one of them
  /// has a trailer, for the flags; its last bucket is launched by submit(). Where a step was begun
  /// and not submitted, later work on the context's stream waits for what that has launched, as it
  /// uses the same memory.
  void begin(std::span<BucketedReduce* const> active);
  /// Launches full buckets and advances pending ones. Never blocks. While the context's stream is
  /// recorded, it launches none, since a recording holds no collectives; the next call does.
  void poll();
  /// Seconds of poll() in this step: over the host, collectives that overlap pass in it.
  [[nodiscard]] double polled_seconds() const { return polled_seconds_; }
  /// Launches all buckets but that of the flags. Afterwards the flags for this rank's parts are
  /// known.
  void flush();
  /// Launches the remaining buckets. Later work on the context's stream can use the sums; on the
  /// host they are complete on return. message.hash is combined with the hash of all collectives
  /// before this point. Throws InvalidArgument where begin() has not been called since the last
  /// call.
  void submit(FlagMessage message);
  /// Synchronizes the context's stream after submit(), the only host synchronization of a step, and
  /// returns the agreement on the step, equal on every rank. Throws CommError on every rank when
  /// the hashes differ.
  [[nodiscard]] AgreedFlags wait();
  /// Bytes passed to collectives of the grid in this step: by the BucketedReduces and, from
  /// submit() on, by all callers.
  [[nodiscard]] std::uint64_t bytes() const {
    return bytes_ + (submitted_ ? grid_.bytes() - bytes_at_submission_ : 0);
  }

 private:
  struct Item {
    BucketedReduce* reduce;
    int bucket;
    std::size_t place;  ///< Order among buckets of equal time.
  };
  void launch(const Item& item);
  void wait_for_dropped();

  [[nodiscard]] Stream stream() const { return overlap_ ? stream_.view() : ctx_.stream(); }

  Context& ctx_;
  WorkerGrid grid_;
  bool overlap_;
  OwnedStream stream_;
  StreamJoin join_;
  Event flags_ready_;
  HostDevicePair message_;   ///< f64[kFlagElements]: flags of this rank, then the sums.
  std::vector<Item> order_;  ///< The bucket with the flags is last.
  std::size_t next_ = 0;
  std::uint64_t bytes_ = 0, bytes_at_submission_ = 0;
  double polled_seconds_ = 0;
  bool submitted_ = false;
};

}  // namespace dkfac::comm
