#include "dkfac/kfac/assignment.h"

#include <gtest/gtest.h>

#include "dkfac/core/error.h"

namespace dkfac::kfac {
namespace {

using Owners = std::vector<int>;

std::vector<LayerLoad> loads(std::initializer_list<double> flops) {
  std::vector<LayerLoad> out;
  for (const double f : flops) out.push_back({f, static_cast<std::int64_t>(f)});
  return out;
}

TEST(Assign, PlacesTheLongestFirstOnTheLeastLoadedRank) {
  // 7 -> 0, 5 -> 1, 4 -> 1 (5 < 7), 3 -> 0 (7 < 9), 1 -> 1 (9 < 10).
  EXPECT_EQ(assign(loads({3, 7, 1, 5, 4}), 2), (Owners{0, 0, 1, 1, 1}));
}

TEST(Assign, GivesEqualLayersToRanksInTurnByIndex) {
  EXPECT_EQ(assign(loads({2, 2, 2, 2, 2}), 3), (Owners{0, 1, 2, 0, 1}));
}

TEST(Assign, GivesEverythingToASingleRank) {
  EXPECT_EQ(assign(loads({3, 0, 7}), 1), (Owners{0, 0, 0}));
}

TEST(Assign, LeavesRanksEmptyWhenThereAreMoreThanLayers) {
  EXPECT_EQ(assign(loads({1, 2}), 5), (Owners{1, 0}));
  EXPECT_TRUE(assign({}, 3).empty());
}

TEST(Assign, BreaksTiesOfFlopsByBytes) {
  // The ranks have equal flops after two layers; the third goes to the one with fewer bytes.
  EXPECT_EQ(assign(std::vector<LayerLoad>{{4, 100}, {4, 10}, {1, 1}}, 2), (Owners{0, 1, 1}));
}

TEST(Assign, PlacesLayersWithoutFactorsByBytesAfterTheFactors) {
  // Factors: 50 bytes on rank 0, 20 on rank 1. Then 40 -> 1, 30 -> 0, 5 -> 1 (60 < 80).
  const std::vector<LayerLoad> mixed{{0, 5}, {10, 50}, {0, 40}, {8, 20}, {0, 30}};
  EXPECT_EQ(assign(mixed, 2), (Owners{1, 0, 1, 1, 0}));
}

TEST(Assign, IsTheSameOnEveryCall) {
  const std::vector<LayerLoad> many = loads({9, 3, 3, 8, 8, 1, 0, 0, 5, 2});
  EXPECT_EQ(assign(many, 4), assign(many, 4));
}

TEST(Assign, RefusesAnEmptyWorld) { EXPECT_THROW((void)assign({}, 0), InvalidArgument); }

TEST(LayerLoadOf, CountsInversionsProductsAndBytes) {
  const LayerLoad linear = layer_load(LinearSpec{.in = 3, .out = 2}, DType::f32);
  EXPECT_EQ(linear.flops, 64 + 8 + 2 * 4 * 2 * 6);
  EXPECT_EQ(linear.bytes, 4 * (8 + 10 + 3));  // parameters, packed A, packed G
  // Two groups of width 3 and 2, with parameters of their own each.
  const LayerLoad grouped =
      layer_load(Conv2dSpec{.in = 6, .out = 4, .bias = false, .groups = 2}, DType::f32);
  EXPECT_EQ(grouped.flops, 2 * (27 + 8 + 2 * 3 * 2 * 5));
  EXPECT_EQ(grouped.bytes, 4 * (12 + 2 * (6 + 3)));
  const LayerLoad table = layer_load(EmbeddingSpec{.vocabulary = 50, .width = 3}, DType::f32);
  EXPECT_EQ(table.flops, 50 + 27 + 50 * 3 + 50 * 2 * 9);  // a diagonal divides, G multiplies
  EXPECT_EQ(table.bytes, 4 * (150 + 50 + 6));
  const LayerLoad bn = layer_load(NormSpec{.channels = 5}, DType::f64);
  EXPECT_EQ(bn.flops, 0);
  EXPECT_EQ(bn.bytes, 8 * (10 + 15));
  EXPECT_EQ(layer_load(NormSpec{.channels = 5, .scale = false}, DType::f64).bytes, 8 * (5 + 5));
  const LayerLoad plain = layer_load(PlainSpec{.weight = 4, .bias = 1}, DType::f32);
  EXPECT_EQ(plain.flops, 0);
  EXPECT_EQ(plain.bytes, 20);
}

}  // namespace
}  // namespace dkfac::kfac
