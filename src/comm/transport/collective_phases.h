#pragma once

#include <memory>
#include <vector>

#include "comm/transport/host_communicator.h"
#include "comm/transport/peer_group.h"

namespace dkfac::comm {

/// One phase of a collective over peers: advanced until it is complete. Never blocks.
class CollectivePhase {
 public:
  virtual ~CollectivePhase() = default;
  virtual bool advance() = 0;
  /// Peers that this rank waits for.
  [[nodiscard]] virtual std::vector<int> missing() const = 0;
};

/// Every rank sends its part of each segment to the segment's owner, who adds the parts in rank
/// order. Bytes out per rank: count - own segment. Result at `out`. An all_reduce hears from
/// every rank, even if it needs none of its elements, so that a late one is known by name here and
/// not as the cause of another's silence in the gathering that follows.
[[nodiscard]] std::unique_ptr<CollectivePhase> make_reduce_phase(PeerGroup& group,
                                                                 const HostCall& call,
                                                                 std::int64_t piece_bytes,
                                                                 std::byte* out, int phase);
/// Every rank sends its segment to every other. Bytes out per rank: (size - 1) x own segment.
/// `in` is this rank's segment; all segments arrive in call.out.
[[nodiscard]] std::unique_ptr<CollectivePhase> make_gather_phase(PeerGroup& group,
                                                                 const HostCall& call,
                                                                 std::int64_t piece_bytes,
                                                                 const std::byte* in, int phase);
/// Binomial tree, pieces passed on as they come: log2(size) hops.
[[nodiscard]] std::unique_ptr<CollectivePhase> make_broadcast_phase(PeerGroup& group,
                                                                    const HostCall& call,
                                                                    std::int64_t piece_bytes,
                                                                    int phase);
/// Every rank tells every other what it is about to do; complete when all have and agree.
/// Throws CommError naming each rank's call otherwise.
[[nodiscard]] std::unique_ptr<CollectivePhase> make_header_phase(PeerGroup& group,
                                                                 const CallInfo& info, int phase);

}  // namespace dkfac::comm
