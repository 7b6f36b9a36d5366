#include "dkfac/kfac/assignment.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"

#include "kfac/resnet50_layers.h"

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

/// The work of each rank, with what it sends and receives.
std::vector<double> work_of(std::span<const FactorLoads> loads, std::span<const LayerOwners> owners,
                            int ranks) {
  std::vector<double> work(static_cast<std::size_t>(ranks));
  for (std::size_t i = 0; i < loads.size(); ++i) {
    const auto add = [&](int rank, double flops) { work[static_cast<std::size_t>(rank)] += flops; };
    const FactorLoads& load = loads[i];
    add(owners[i].layer, load.apply);
    for (const auto& [rank, flops, send] :
         {std::tuple(owners[i].a, load.a, load.send_a), {owners[i].g, load.g, load.send_g}}) {
      add(rank, flops);
      if (rank == owners[i].layer) continue;
      add(rank, send);
      add(owners[i].layer, send);
    }
  }
  return work;
}

TEST(AssignFactors, KeepsLayersWholeWhereTheRanksAreEven) {
  const std::vector<FactorLoads> even(4, {.a = 6, .g = 3, .apply = 1, .send_a = 1, .send_g = 1});
  EXPECT_EQ(assign_factors(even, 1), std::vector<LayerOwners>(4, 0));
  EXPECT_EQ(assign_factors(even, 2), (std::vector<LayerOwners>{0, 1, 0, 1}));
}

TEST(AssignFactors, SendsTheNarrowerInverseWhereThatIsEnough) {
  // 10 in all: no rank can do with less than 6. A alone would be even (6 + 4), but dearer to send.
  const std::vector<FactorLoads> one{{.a = 6, .g = 4, .apply = 0, .send_a = 0.1, .send_g = 0.05}};
  EXPECT_EQ(assign_factors(one, 2), (std::vector<LayerOwners>{{0, 0, 1}}));
  const std::vector<FactorLoads> other{{.a = 4, .g = 6, .apply = 0, .send_a = 0.05, .send_g = 0.1}};
  EXPECT_EQ(assign_factors(other, 2), (std::vector<LayerOwners>{{0, 1, 0}}));
}

TEST(AssignFactors, LeavesTheWiderFactorAloneWhereTheRestIsTooMuchBesideIt) {
  // Preconditioning weighs 5: 6 | 1 + 5 is even, 6 + 5 | 1 is not.
  const std::vector<FactorLoads> one{{.a = 6, .g = 1, .apply = 5, .send_a = 0.1, .send_g = 0}};
  EXPECT_EQ(assign_factors(one, 2), (std::vector<LayerOwners>{{1, 0, 1}}));
}

TEST(AssignFactors, KeepsALayerWholeWhoseMessageCostsMoreThanItSaves) {
  const std::vector<FactorLoads> one{{.a = 6, .g = 4, .apply = 0, .send_a = 7, .send_g = 7}};
  EXPECT_EQ(assign_factors(one, 2), (std::vector<LayerOwners>{0}));
}

LayerOwners shared(LayerOwners owners, int ranks_a, int ranks_g = 1) {
  owners.ranks_a = ranks_a;
  owners.ranks_g = ranks_g;
  return owners;
}

TEST(AssignFactors, GivesAFactorForSeveralRanksToThoseOfWhichTheBusiestHasLeast) {
  // 9 -> 0, 5 -> 1 and 2; then ranks 2 and 3 have 5 and 0, so A goes there, its owner is rank 3.
  const std::vector<FactorLoads> loads{
      {.a = 9}, {.a = 5}, {.a = 5}, {.a = 3, .g = 1, .apply = 0.5, .ranks_a = 2}};
  EXPECT_EQ(assign_factors(loads, 4),
            (std::vector<LayerOwners>{0, 1, 2, shared(LayerOwners(3), 2)}));
  // Five ranks have two pairs: the fifth belongs to none.
  EXPECT_EQ(assign_factors(loads, 5),
            (std::vector<LayerOwners>{0, 1, 2, shared(LayerOwners(3), 2)}));
  // G and the products go to a rank that does not invert A.
  const std::vector<FactorLoads> one{
      {.a = 6, .g = 5, .apply = 1, .send_a = 0.1, .send_g = 0.1, .ranks_a = 2}};
  EXPECT_EQ(assign_factors(one, 4), (std::vector<LayerOwners>{shared({2, 0, 2}, 2)}));
  // Both for several, of which the fewer are among the others.
  const std::vector<FactorLoads> both{{.a = 2, .g = 1, .ranks_a = 4, .ranks_g = 2}};
  EXPECT_EQ(assign_factors(both, 4, false), (std::vector<LayerOwners>{shared(0, 4, 2)}));
}

TEST(AssignFactors, SpreadsTheOwnersOfSharedFactorsOverTheColumnsOfWorkers) {
  const std::vector<FactorLoads> loads(4, {.a = 100, .g = 1, .apply = 10, .ranks_a = 4});
  const auto columns = [&](int workers) {
    std::vector<int> all;
    for (const LayerOwners& at : assign_factors(loads, 16, false, workers))
      all.push_back(at.layer % 4);
    std::ranges::sort(all);
    return all;
  };
  EXPECT_EQ(columns(4), (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(columns(1), (std::vector<int>{0, 0, 0, 0}));
  EXPECT_THROW((void)assign_factors(loads, 16, false, 3), InvalidArgument);
}

TEST(AssignFactors, PlacesLayersAsAssignDoesWhereAllStayWhole) {
  std::vector<FactorLoads> loads{{.bytes = 5}, {.bytes = 40}};
  for (const LayerSpec& spec : testing::resnet50_layers())
    loads.push_back(factor_loads(spec, DType::f32));
  std::vector<LayerLoad> whole;
  for (const FactorLoads& load : loads) whole.push_back({load.whole(), load.bytes});
  for (const int ranks : {1, 3, 8, 64}) {
    const std::vector<int> owners = assign(whole, ranks);
    EXPECT_EQ(assign_factors(loads, ranks, false),
              std::vector<LayerOwners>(owners.begin(), owners.end()))
        << ranks;
  }
}

TEST(AssignFactors, PlacesLayersWithoutFactorsAsAssignDoes) {
  const std::vector<FactorLoads> mixed{{.bytes = 5},
                                       {.a = 6, .apply = 4, .bytes = 50},
                                       {.bytes = 40},
                                       {.a = 8, .bytes = 20},
                                       {.bytes = 30}};
  EXPECT_EQ(assign_factors(mixed, 2), (std::vector<LayerOwners>{1, 0, 1, 1, 0}));
  EXPECT_THROW((void)assign_factors(mixed, 0), InvalidArgument);
}

TEST(FactorLoadsOf, AreThePartsOfTheLayersLoad) {
  const FactorLoads fc = factor_loads(LinearSpec{.in = 3, .out = 2}, DType::f32);
  EXPECT_EQ(fc.a, 64);
  EXPECT_EQ(fc.g, 8);
  EXPECT_EQ(fc.apply, 2 * 4 * 2 * 6);
  // The triangle and a damping, in f32, at 10 operations a byte.
  EXPECT_EQ(fc.send_a, 10 * 4 * (10 + 1));
  EXPECT_EQ(fc.send_g, 10 * 4 * (3 + 1));
}

// The table of docs/distribution.md, "Factors on different ranks".
TEST(AssignFactors, EvensOutTheWorkOfResNet50) {
  std::vector<FactorLoads> loads;
  for (const LayerSpec& spec : testing::resnet50_layers())
    loads.push_back(factor_loads(spec, DType::f32));
  ASSERT_EQ(loads.size(), 54U);
  std::vector<LayerLoad> whole;
  for (const FactorLoads& load : loads) whole.push_back({load.whole(), load.bytes});
  struct Balance {
    int ranks;
    double together, apart;  ///< Largest over mean work, to two decimals.
    int sent;                ///< Inverses.
    int idle_together, idle_apart;
  };
  for (const Balance& expected : {Balance{2, 1.00, 1.00, 0, 0, 0},
                                  {4, 1.00, 1.00, 0, 0, 0},
                                  {8, 1.60, 1.29, 3, 0, 0},
                                  {64, 12.84, 10.33, 3, 10, 7},
                                  {512, 102.69, 82.62, 3, 458, 455}}) {
    const std::vector<int> owners = assign(whole, expected.ranks);
    const std::vector<double> together =
        work_of(loads, std::vector<LayerOwners>(owners.begin(), owners.end()), expected.ranks);
    const std::vector<LayerOwners> divided = assign_factors(loads, expected.ranks);
    const std::vector<double> apart = work_of(loads, divided, expected.ranks);
    const double mean = std::accumulate(together.begin(), together.end(), 0.0) / expected.ranks;
    const auto balance = [mean](const std::vector<double>& work) {
      return std::round(100 * *std::ranges::max_element(work) / mean) / 100;
    };
    EXPECT_EQ(balance(together), expected.together) << expected.ranks;
    EXPECT_EQ(balance(apart), expected.apart) << expected.ranks;
    EXPECT_EQ(std::ranges::count(together, 0), expected.idle_together) << expected.ranks;
    EXPECT_EQ(std::ranges::count(apart, 0), expected.idle_apart) << expected.ranks;
    EXPECT_EQ(std::ranges::count_if(
                  divided, [](const LayerOwners& o) { return o.a != o.layer || o.g != o.layer; }),
              expected.sent)
        << expected.ranks;
  }
}

}  // namespace
}  // namespace dkfac::kfac
