#include "comm/transport/node_map.h"

#include <gtest/gtest.h>

#include "dkfac/core/error.h"

namespace dkfac::comm {
namespace {

using Labels = std::vector<std::string>;
using Counts = std::vector<std::int64_t>;

TEST(NodeMap, NumbersNodesAndPlacesByTheirFirstRank) {
  const NodeMap map = make_node_map(Labels{"b", "a", "a", "b", "c", "c"});
  EXPECT_EQ(map.nodes, 3);
  EXPECT_EQ(map.places, 2);
  EXPECT_EQ(map.node_of, (std::vector<int>{0, 1, 1, 0, 2, 2}));
  EXPECT_EQ(map.place_of, (std::vector<int>{0, 0, 1, 1, 0, 1}));
  EXPECT_EQ(map.rank_at, (std::vector<int>{0, 1, 4, 3, 2, 5}));
  EXPECT_EQ(map.rank(1, 1), 2);
}

TEST(NodeMap, AddsUpCountsByPlace) {
  const NodeMap map = make_node_map(Labels{"b", "a", "a", "b"});
  const Counts counts{1, 10, 100, 1000};
  EXPECT_EQ(map.counts_at(0, counts), (Counts{1, 10}));
  EXPECT_EQ(map.counts_at(1, counts), (Counts{1000, 100}));
  EXPECT_EQ(map.counts_of_places(counts), (Counts{11, 1100}));
}

TEST(NodeMap, RefusesNodesOfUnequalSizeByName) {
  try {
    (void)make_node_map(Labels{"left", "right", "left"});
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("'right' has 1"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace dkfac::comm
