#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace dkfac::comm {

/// Node of each rank and its place (index) in the node. Every node has `places` ranks.
struct NodeMap {
  int nodes = 1, places = 1;
  std::vector<int> node_of, place_of;  ///< By rank.
  std::vector<int> rank_at;            ///< By place * nodes + node.

  [[nodiscard]] int rank(int node, int place) const {
    return rank_at[static_cast<std::size_t>(place * nodes + node)];
  }
  [[nodiscard]] int node(int rank) const { return node_of[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] int place(int rank) const { return place_of[static_cast<std::size_t>(rank)]; }

  /// Returns the elements of the rank at `place` in each node, by node.
  [[nodiscard]] std::vector<std::int64_t> counts_at(int place,
                                                    std::span<const std::int64_t> by_rank) const;
  /// Returns the elements of each place, summed over all nodes.
  [[nodiscard]] std::vector<std::int64_t> counts_of_places(
      std::span<const std::int64_t> by_rank) const;
};

/// Groups ranks with equal labels into nodes; nodes and places are numbered by their first rank.
/// Throws InvalidArgument unless every label occurs equally often.
[[nodiscard]] NodeMap make_node_map(std::span<const std::string> label_by_rank);

}  // namespace dkfac::comm
