#pragma once

#include <memory>
#include <vector>

#include "comm/host_communicator.h"
#include "comm/mpi_group.h"

namespace dkfac::comm {

/// One phase of a collective: advanced until it is complete. Never blocks.
class MpiFlow {
 public:
  virtual ~MpiFlow() = default;
  virtual bool advance() = 0;
  /// Peers that this rank waits for.
  [[nodiscard]] virtual std::vector<int> missing() const = 0;
};

/// Every rank sends its part of each segment to the segment's owner, who adds the parts in rank
/// order. Bytes out per rank: count - own segment. Result at `out`.
[[nodiscard]] std::unique_ptr<MpiFlow> make_reduce_flow(MpiGroup& group, const HostCall& call,
                                                        std::int64_t piece_bytes, std::byte* out,
                                                        int tag);
/// Every rank sends its segment to every other. Bytes out per rank: (size - 1) x own segment.
/// `in` is this rank's segment; all segments arrive in call.out.
[[nodiscard]] std::unique_ptr<MpiFlow> make_gather_flow(MpiGroup& group, const HostCall& call,
                                                        std::int64_t piece_bytes,
                                                        const std::byte* in, int tag);
/// Binomial tree, pieces passed on as they come: log2(size) hops.
[[nodiscard]] std::unique_ptr<MpiFlow> make_broadcast_flow(MpiGroup& group, const HostCall& call,
                                                           std::int64_t piece_bytes, int tag);
/// Every rank tells every other what it is about to do; complete when all have and agree.
/// Throws CommError naming each rank's call otherwise.
[[nodiscard]] std::unique_ptr<MpiFlow> make_header_flow(MpiGroup& group, const CallInfo& info,
                                                        int tag);

}  // namespace dkfac::comm
