#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "dkfac/core/stream.h"

#include "comm/collective/exchange.h"
#include "comm/collective/mirror.h"
#include "comm/collective/stream_join.h"
#include "comm/collective/vote.h"

namespace dkfac::comm {

/// Launches the buckets of several exchanges in one order that every rank shares, whatever the
/// order in which they fill up, and takes the vote with the last of them.
class Pipeline {
 public:
  /// overlap: buckets leave from poll(), on a communication stream; else all leave from submit(),
  /// on the context's.
  Pipeline(Context& ctx, WorkerGrid grid, bool overlap);

  /// Starts an iteration with these exchanges, which have begun theirs. Exactly one of them has a
  /// tail, for the vote; its last bucket waits for submit().
  void begin(std::span<Exchange* const> active);
  /// Launches what is full and advances what is under way. Never blocks.
  void poll();
  /// Launches all but the vote: what this rank has to say of its parts is known afterwards.
  void flush();
  /// Launches the rest; work that follows on the context's stream finds the sums (on the host they
  /// are there). ballot.hash is combined with the hash of all collectives before this point.
  void submit(Ballot ballot);
  /// After submit(): waits for all that is on the context's stream, the only wait of a step for a
  /// device, and returns the outcome of the vote, equal on every rank. Throws CommError on every
  /// rank when the hashes differ.
  [[nodiscard]] Outcome outcome();
  [[nodiscard]] Outcome finish(const Ballot& ballot) {
    submit(ballot);
    return outcome();
  }
  /// Bytes handed to collectives of the grid in this step: by the exchanges, and, from submit() on,
  /// by anybody.
  [[nodiscard]] std::uint64_t bytes() const {
    return bytes_ + (submitted_ ? grid_.bytes() - bytes_at_submission_ : 0);
  }

 private:
  struct Item {
    Exchange* exchange;
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
  Event told_;
  Mirror ballot_;            ///< f64[kBallotElements]: of this rank, then the sums.
  std::vector<Item> order_;  ///< The one with the vote is last.
  std::size_t next_ = 0;
  std::uint64_t bytes_ = 0, bytes_at_submission_ = 0;
  bool submitted_ = false;
};

}  // namespace dkfac::comm
