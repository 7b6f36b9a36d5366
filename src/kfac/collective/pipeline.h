#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "dkfac/core/stream.h"

#include "kfac/collective/exchange.h"
#include "kfac/collective/mirror.h"
#include "kfac/collective/stream_join.h"
#include "kfac/collective/vote.h"

namespace dkfac::kfac {

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
  /// rank when the hashes differ, and InvalidArgument when no rank has samples and the step would
  /// pass.
  [[nodiscard]] Outcome outcome();
  [[nodiscard]] Outcome finish(const Ballot& ballot) {
    submit(ballot);
    return outcome();
  }
  /// Bytes handed to collectives since begin().
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

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
  std::uint64_t bytes_ = 0;
};

}  // namespace dkfac::kfac
