#pragma once

#include <memory>
#include <vector>

#include "comm/transport/host_communicator.h"
#include "comm/transport/peer_group.h"

namespace dkfac::comm {

/// One phase of a collective over peers, advanced by polling until it is complete. Never blocks.
class CollectivePhase {
 public:
  virtual ~CollectivePhase() = default;
  virtual bool advance() = 0;
  /// Peers that this rank waits for.
  [[nodiscard]] virtual std::vector<int> missing() const = 0;
};

/// What a phase that moves data is made of; it borrows group and call.
struct PhaseArguments {
  PeerGroup& group;
  const HostCall& call;
  std::int64_t piece_bytes;
  int phase;  ///< Its number, on all ranks.
  PeerGroup::Channel channel = PeerGroup::Channel::data;
};
using Phase = std::unique_ptr<CollectivePhase>;

/// Makes the reduce phase: every rank sends its part of each segment to the segment's owner, which
/// adds the parts in rank order; beyond kMostInRankOrder ranks see make_tree_reduce_phase(). Bytes
/// sent per rank: count - own segment. The result is at `out`.
/// In an all_reduce each rank receives a message from every rank, also from one without elements
/// for it. A late rank is thus named in this phase, rather than one that waits for it in the
/// gather.
[[nodiscard]] Phase make_reduce_phase(const PhaseArguments& arguments, std::byte* out);
/// Makes the gather phase: every rank sends its segment to every other; beyond kMostInRankOrder
/// ranks see make_tree_gather_phase(). Bytes sent per rank: (size - 1) x own segment. `in` is this
/// rank's segment; all segments arrive in call.out.
[[nodiscard]] Phase make_gather_phase(const PhaseArguments& arguments, const std::byte* in);
/// Makes the broadcast phase: a binomial tree of log2(size) hops that forwards pieces as they
/// arrive; beyond kMostInRankOrder ranks a gather to which the root alone adds something.
[[nodiscard]] Phase make_broadcast_phase(const PhaseArguments& arguments);
/// Makes the exchange phase: the messages of the call's routes, each from one rank to another.
[[nodiscard]] Phase make_exchange_phase(const PhaseArguments& arguments);
/// Makes the header phase, a gather of the records of all ranks' calls. It completes when all have
/// arrived and agree, and otherwise throws CommError that names each rank's call. With Check::full
/// every rank sends its record to every other, so that each knows which one is late.
[[nodiscard]] Phase make_header_phase(PeerGroup& group, const CallInfo& info, Check check,
                                      int phase);

}  // namespace dkfac::comm
