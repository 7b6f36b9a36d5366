#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "dkfac/core/stream.h"

#include "comm/collective/bucketed_reduce.h"
#include "comm/collective/flag_message.h"
#include "comm/collective/host_device_pair.h"
#include "comm/collective/stream_join.h"

namespace dkfac::comm {

/// Launches the buckets of several exchanges in one order that every rank shares, whatever the
/// order in which they fill up, and takes the vote with the last of them.
class StepPipeline {
 public:
  /// overlap: buckets leave from poll(), on a communication stream; else all leave from submit(),
  /// on the context's.
  StepPipeline(Context& ctx, WorkerGrid grid, bool overlap);

  /// Starts an iteration with these exchanges, which have begun theirs. Exactly one of them has a
  /// trailer, for the vote; its last bucket waits for submit().
  void begin(std::span<BucketedReduce* const> active);
  /// Launches what is full and advances what is under way. Never blocks.
  void poll();
  /// Launches all but the vote: what this rank has to say of its parts is known afterwards.
  void flush();
  /// Launches the rest; work that follows on the context's stream finds the sums (on the host they
  /// are there). message.hash is combined with the hash of all collectives before this point.
  void submit(FlagMessage message);
  /// After submit(): waits for all that is on the context's stream, the only wait of a step for a
  /// device, and returns the outcome of the vote, equal on every rank. Throws CommError on every
  /// rank when the hashes differ.
  [[nodiscard]] AgreedFlags wait();
  [[nodiscard]] AgreedFlags finish(const FlagMessage& message) {
    submit(message);
    return wait();
  }
  /// Bytes handed to collectives of the grid in this step: by the exchanges, and, from submit() on,
  /// by anybody.
  [[nodiscard]] std::uint64_t bytes() const {
    return bytes_ + (submitted_ ? grid_.bytes() - bytes_at_submission_ : 0);
  }

 private:
  struct Item {
    BucketedReduce* reduce;
    int bucket;
    std::size_t place;  ///< Among buckets of equal time.
  };
  void launch(const Item& item);

  [[nodiscard]] Stream stream() const { return overlap_ ? stream_.view() : ctx_.stream(); }

  Context& ctx_;
  WorkerGrid grid_;
  bool overlap_;
  OwnedStream stream_;
  StreamJoin join_;
  Event flags_ready_;
  HostDevicePair message_;   ///< f64[kFlagElements]: of this rank, then the sums.
  std::vector<Item> order_;  ///< The one with the vote is last.
  std::size_t next_ = 0;
  std::uint64_t bytes_ = 0, bytes_at_submission_ = 0;
  bool submitted_ = false;
};

}  // namespace dkfac::comm
