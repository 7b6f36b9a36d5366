#include "comm/transport/node_map.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "dkfac/core/error.h"

#include "core/shared/index.h"

namespace dkfac::comm {
namespace {

void check_sizes(const std::vector<std::pair<std::string, std::vector<int>>>& nodes) {
  for (const auto& [label, ranks] : nodes)
    DKFAC_CHECK(ranks.size() == nodes.front().second.size(), "[make_hierarchical] node '", label,
                "' has ", ranks.size(), " ranks and node '", nodes.front().first, "' has ",
                nodes.front().second.size(), "; start equally many on every node");
}

}  // namespace

std::vector<std::int64_t> NodeMap::counts_at(int place_wanted,
                                             std::span<const std::int64_t> by_rank) const {
  std::vector<std::int64_t> counts;
  for (int m = 0; m < nodes; ++m) counts.push_back(by_rank[index_of(rank(m, place_wanted))]);
  return counts;
}

std::vector<std::int64_t> NodeMap::counts_of_places(std::span<const std::int64_t> by_rank) const {
  std::vector<std::int64_t> counts;
  for (int l = 0; l < places; ++l) {
    const std::vector<std::int64_t> here = counts_at(l, by_rank);
    counts.push_back(std::accumulate(here.begin(), here.end(), std::int64_t{0}));
  }
  return counts;
}

NodeMap make_node_map(std::span<const std::string> label_by_rank) {
  std::vector<std::pair<std::string, std::vector<int>>> nodes;
  NodeMap map;
  for (std::size_t r = 0; r < label_by_rank.size(); ++r) {
    const auto same = std::ranges::find(nodes, label_by_rank[r], [](auto& n) { return n.first; });
    const auto node = static_cast<std::size_t>(same - nodes.begin());
    if (same == nodes.end()) nodes.push_back({label_by_rank[r], {}});
    std::vector<int>& ranks = nodes[node].second;
    map.node_of.push_back(static_cast<int>(node));
    map.place_of.push_back(static_cast<int>(ranks.size()));
    ranks.push_back(static_cast<int>(r));
  }
  check_sizes(nodes);
  map.nodes = static_cast<int>(nodes.size());
  map.places = static_cast<int>(nodes.front().second.size());
  map.rank_at.resize(label_by_rank.size());
  for (std::size_t r = 0; r < label_by_rank.size(); ++r)
    map.rank_at[index_of(map.place_of[r] * map.nodes + map.node_of[r])] = static_cast<int>(r);
  return map;
}

}  // namespace dkfac::comm
