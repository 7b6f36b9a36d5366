#include "app/plan/owners.h"

#include <gtest/gtest.h>

namespace dkfac::app::planning {
namespace {

/// A network of one layer whose A is 4,608 wide.
Network wide_layer() {
  Network network{.name = "wide", .names = {"fc"}, .specs = {LinearSpec{4607, 64}}};
  network.layers.push_back({.name = "fc", .kind = PassKind::product, .spec = 0});
  return network;
}

Ownership owners_of(int ranks, bool split_wide) {
  Strategy s{.name = "kfac"};
  s.curvature.inverse.block_width = -1;
  s.curvature.distribution.split_wide = split_wide;
  return ownership_of(wide_layer(), s, ranks, true);
}

/// Inversions at one operation a second; a byte takes a second within a node, and a message ten.
Cluster nodes_of_8(int ranks) {
  Cluster c{.ranks = ranks, .per_node = 8, .inner = {1, 10}, .outer = {1e-9, 1e9}};
  c.processor.products32 = c.processor.cholesky = c.processor.cholesky_one = 1;
  return c;
}

constexpr Rebuild kAll{.any = true};

TEST(RebuildWork, OfAWideFactorIsThatOfTheRankThatIsWaitedFor) {
  const double d = 4608, whole = d * d * d, g = 64.0 * 64 * 64;
  const RebuildWork alone = rebuild_work(owners_of(8, false), nodes_of_8(8), kAll);
  EXPECT_DOUBLE_EQ(alone.seconds, whole + g);
  EXPECT_EQ(alone.exchange.inner + alone.exchange.outer + alone.exchange.latency, 0);
  // The speed-up of docs/distribution.md, "A factor on several ranks"; G is another rank's or its.
  const RebuildWork together = rebuild_work(owners_of(8, true), nodes_of_8(8), kAll);
  EXPECT_NEAR(together.seconds, whole / 5.55, 0.001 * whole);
  // 36 blocks of 128 columns pass a chain of 8; then twice what other ranks have of them.
  const double columns = 128.0 * 128 * 36 * 37 / 2;
  EXPECT_DOUBLE_EQ(together.exchange.latency, 36 * 7 * 10.0 + 10);
  EXPECT_GT(together.exchange.inner, 4 * columns + 4 * 2 * columns * 7 / 8);
  EXPECT_LT(together.exchange.inner, 4 * columns + 4 * 2 * columns);
  EXPECT_EQ(together.exchange.outer, 0);
}

TEST(RebuildWork, OfTheAdaptiveRuleIsThatOfWhatIsDue) {
  for (const bool together : {false, true}) {
    const Ownership o = owners_of(8, together);
    const RebuildWork all = rebuild_work(o, nodes_of_8(8), kAll),
                      part = adaptive_rebuild_work(o, nodes_of_8(8), 0.25);
    // G of 64 columns is lost beside it.
    EXPECT_NEAR(part.seconds, 0.25 * all.seconds, 1e-5 * all.seconds);
    EXPECT_DOUBLE_EQ(part.exchange.inner, 0.25 * all.exchange.inner);
    EXPECT_DOUBLE_EQ(part.exchange.latency, 0.25 * all.exchange.latency);
  }
}

TEST(RebuildWork, IsNoneWhereNothingIsDue) {
  EXPECT_EQ(rebuild_work(owners_of(8, true), nodes_of_8(8), {}).seconds, 0);
}

TEST(Balance, IsOverTheMeanOfFactorsThatOneRankInverts) {
  EXPECT_NEAR(balance(owners_of(8, false), 8), 8, 0.1);
  // The owner also makes the direction, of 2 * 64 * 4,608 * (4,608 + 64) operations.
  EXPECT_NEAR(balance(owners_of(8, true), 8), 8 * (1 / 5.55 + 0.028), 0.1);
}

}  // namespace
}  // namespace dkfac::app::planning
