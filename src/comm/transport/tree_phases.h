#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "comm/transport/collective_phases.h"

namespace dkfac::comm {

/// Makes the reduce phase of more than kMostInRankOrder ranks, by recursive halving: the steps of
/// tree_steps(), in which sums travel towards the owners of their segments. call.in is overwritten.
/// Sums of 16-bit parts are f32 until their owner rounds them; parts of one rank travel as they
/// are.
[[nodiscard]] std::unique_ptr<CollectivePhase> make_tree_reduce_phase(PeerGroup& group,
                                                                      const HostCall& call,
                                                                      std::int64_t piece_bytes,
                                                                      std::byte* out, int phase);
/// Makes the gather phase, by recursive doubling: the same steps backwards.
[[nodiscard]] std::unique_ptr<CollectivePhase> make_tree_gather_phase(PeerGroup& group,
                                                                      const HostCall& call,
                                                                      std::int64_t piece_bytes,
                                                                      const std::byte* in,
                                                                      int phase);

}  // namespace dkfac::comm
