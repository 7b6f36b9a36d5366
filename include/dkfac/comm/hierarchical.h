#pragma once

#include <memory>

#include "dkfac/comm/communicator.h"
#include "dkfac/core/export.h"

namespace dkfac::comm {

/// A communicator over nodes of equally many ranks each, and the two that it is made of.
struct DKFAC_API Hierarchy {
  std::shared_ptr<Communicator> comm;   ///< All ranks, with the ranks of the given communicator.
  std::shared_ptr<Communicator> inner;  ///< The ranks of this rank's node.
  std::shared_ptr<Communicator> outer;  ///< The ranks at this rank's place in every node.
};

/// Collectives in two levels, so that less crosses the slow links between nodes: all_reduce is a
/// reduce_scatter inside each node, an all_reduce of each segment between nodes, and an all_gather
/// inside (Goyal et al. 2017, section 4). The other collectives are composed alike; split() is that
/// of `world`. The contract of Communicator holds with one difference: a sum adds the ranks of each
/// node in order, and then the nodes in order, rounding bf16 and f16 once per level. Every rank
/// gets the same bits. What `outer` is handed is counted by outer->bytes(): docs/distribution.md.
///
/// Nodes are runs of `ranks_per_node` consecutive ranks. Collective over `world`, which must not be
/// used directly while calls are pending. Throws InvalidArgument unless ranks_per_node divides its
/// size.
[[nodiscard]] DKFAC_API Hierarchy make_hierarchical(std::shared_ptr<Communicator> world,
                                                    int ranks_per_node);

/// Nodes are the ranks with the same host name. Throws InvalidArgument on every rank, naming the
/// hosts, unless all have equally many.
[[nodiscard]] DKFAC_API Hierarchy make_hierarchical_by_host(std::shared_ptr<Communicator> world);

}  // namespace dkfac::comm
