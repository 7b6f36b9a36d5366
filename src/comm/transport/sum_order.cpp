#include "comm/transport/sum_order.h"

#include <algorithm>
#include <cstddef>

namespace dkfac::comm {
namespace {

constexpr int kAbsent = -1;

int leaves_of(int ranks) {
  int leaves = 1;
  while (leaves < ranks) leaves *= 2;
  return leaves;
}

/// Returns the rank of each leaf, or kAbsent.
std::vector<int> ranks_of_leaves(int ranks) {
  const int leaves = leaves_of(ranks);
  std::vector<int> result(static_cast<std::size_t>(leaves), kAbsent);
  for (long r = 0; r < ranks; ++r)
    result[static_cast<std::size_t>(r * leaves / ranks)] = static_cast<int>(r);
  return result;
}

/// Appends the sum of the leaves v, v + d, v + 2 d, ...; false where all are absent.
bool append(const std::vector<int>& leaves, std::size_t v, std::size_t d,
            std::vector<SumStep>& order) {
  if (d == leaves.size()) {
    if (leaves[v] == kAbsent) return false;
    order.push_back({leaves[v], 0});
    return true;
  }
  const bool lower = append(leaves, v, 2 * d, order), upper = append(leaves, v + d, 2 * d, order);
  if (lower && upper) ++order.back().merges;
  return lower || upper;
}

/// A node of the tree while the ranks exchange halves.
struct TreeNode {
  int host = kAbsent;  ///< Rank that has the sums of the node.
  int parts = 0;       ///< Ranks whose parts are in them.
};

void add_range(std::vector<TreeMessage>& messages, int peer, const TreeRange& range) {
  const auto found = std::find_if(messages.begin(), messages.end(),
                                  [peer](const TreeMessage& m) { return m.peer == peer; });
  (found == messages.end() ? messages.emplace_back(TreeMessage{peer, {}}) : *found)
      .ranges.push_back(range);
}

}  // namespace

std::vector<SumStep> sum_order(int ranks) {
  std::vector<SumStep> order;
  if (ranks > kMostInRankOrder)
    append(ranks_of_leaves(ranks), 0, 1, order);
  else
    for (int r = 0; r < ranks; ++r) order.push_back({r, r == 0 ? 0 : 1});
  return order;
}

std::vector<TreeStep> tree_steps(int ranks, int rank) {
  const std::vector<int> leaves = ranks_of_leaves(ranks);
  std::vector<int> ranks_before(1, 0);  // by leaf
  std::vector<TreeNode> nodes;
  for (const int leaf : leaves) {
    ranks_before.push_back(ranks_before.back() + (leaf == kAbsent ? 0 : 1));
    nodes.push_back({leaf, leaf == kAbsent ? 0 : 1});
  }
  std::vector<TreeStep> steps;
  for (std::size_t d = nodes.size() / 2; d > 0; d /= 2) {
    TreeStep step;
    std::vector<TreeNode> next = nodes;
    for (std::size_t v = 0; v < nodes.size(); ++v) {
      const std::size_t u = v ^ d;
      const TreeNode &mine = nodes[v], &partner = nodes[u];
      next[v] = {mine.host == kAbsent ? partner.host : mine.host, mine.parts + partner.parts};
      if (mine.host == kAbsent || partner.host == kAbsent) continue;
      const std::size_t block = u / d * d;  // of the leaves whose segments the partner keeps
      const TreeRange range{ranks_before[block], ranks_before[block + d], mine.parts > 1, v < u};
      if (range.first == range.last) continue;
      if (mine.host == rank) add_range(step.sent, partner.host, range);
      if (partner.host == rank) add_range(step.received, mine.host, range);
    }
    nodes = std::move(next);
    steps.push_back(std::move(step));
  }
  return steps;
}

}  // namespace dkfac::comm
