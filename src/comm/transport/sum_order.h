#pragma once

#include <vector>

namespace dkfac::comm {

/// Number of ranks up to which parts are added in rank order. Beyond, they are added along one
/// binary tree, the same for every element and on every backend that adds them itself. Rank r of P
/// is leaf floor(r Q / P) of Q, the least power of two that is not below P; the other leaves are
/// absent. With d = Q/2, Q/4, ..., 1, node v becomes the sum of nodes v and v + d, in this order,
/// for each v < d; where one of them is absent it is the other. Ranks that exchange halves of what
/// they have left with the partner at distance d, first the farthest, add along this tree, and
/// keep contiguous segments (Thakur et al. 2005, recursive halving).
inline constexpr int kMostInRankOrder = 8;

/// One step of a sum on a stack: pushes the part of `rank`, then adds the top to what is below it
/// `merges` times.
struct SumStep {
  int rank = 0, merges = 0;
};
/// The sum over `ranks` parts, in rank order or along the tree; its stack has at most
/// log2(ranks) + 2 places.
[[nodiscard]] std::vector<SumStep> sum_order(int ranks);

/// Sums of a sender, or parts if it has none of others yet, for the owners [first, last).
struct TreeRange {
  int first = 0, last = 0;
  bool summed = false;    ///< Parts of several ranks.
  bool is_lower = false;  ///< What the sender has is added before what the receiver has.
};
/// Message to or from a peer in a step. `ranges` are in the same order on both sides.
struct TreeMessage {
  int peer = 0;
  std::vector<TreeRange> ranges;
};
/// What a rank sends and receives in one step of a reduction: at most one message to a peer, and
/// one from it. An all-gather makes the steps backwards, and sends what is received here.
struct TreeStep {
  std::vector<TreeMessage> sent, received;
};
/// The log2(Q) steps of a rank by which each owner gets the sum of its segment along the tree. A
/// rank stands in for absent partners: it keeps both halves.
[[nodiscard]] std::vector<TreeStep> tree_steps(int ranks, int rank);

}  // namespace dkfac::comm
