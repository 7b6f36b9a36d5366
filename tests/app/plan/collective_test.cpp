#include "app/plan/collective.h"

#include <cmath>

#include <gtest/gtest.h>

// The steps and bytes of docs/distribution.md, "Steps and bytes" and "Two levels".
namespace dkfac::app::planning {
namespace {

constexpr double kBytes = 1 << 20;
/// Powers of two: every quotient below is exact.
Cluster machine(int ranks, int per_node, Algorithm algorithm) {
  return {.ranks = ranks,
          .per_node = per_node,
          .inner = {0x1p30, 0x1p-20},
          .outer = {0x1p26, 0x1p-16},
          .algorithm = algorithm};
}

TEST(Collective, DirectSumsSendAllButTheOwnPart) {
  const Cluster c = machine(4, 4, Algorithm::direct);
  EXPECT_EQ(to_owners(kBytes, kBytes / 4, c).inner, kBytes * 3 / 4);  // n - n_r
  EXPECT_EQ(to_owners(kBytes, kBytes, c).inner, 3 * kBytes);          // (P - 1) n_r into one owner
  EXPECT_EQ(all_reduce(kBytes, c).inner, 2 * kBytes * 3 / 4);         // 2 n (P - 1) / P
  EXPECT_EQ(to_owners(kBytes, kBytes, c).outer, 0);
}

TEST(Collective, DirectSumsLeaveANodeOncePerRank) {
  // n (P - L) / P of each of the L ranks of a node, and the rest within it.
  const Transfer t = to_owners(kBytes, kBytes / 16, machine(16, 4, Algorithm::direct));
  EXPECT_DOUBLE_EQ(t.outer, kBytes * 12 / 16);
  EXPECT_DOUBLE_EQ(t.inner, kBytes * 3 / 16);
}

TEST(Collective, ChainsShareTheCardsOfANode) {
  const Transfer t = to_owners(kBytes, kBytes, machine(16, 4, Algorithm::nccl));
  EXPECT_EQ(t.inner, kBytes);
  EXPECT_EQ(t.outer, kBytes / 4);
  EXPECT_EQ(t.latency, 12 * 0x1p-20 + 3 * 0x1p-16);
  EXPECT_EQ(to_owners(kBytes, 0, machine(16, 4, Algorithm::nccl)).outer, t.outer);
}

TEST(Collective, HalvingHasTheVolumeOfARingAndLogPSteps) {
  const Cluster c = machine(16, 4, Algorithm::halving);
  const Transfer even = to_owners(kBytes, kBytes / 16, c);
  EXPECT_EQ(even.inner, kBytes / 2 + kBytes / 4);
  EXPECT_EQ(even.inner + even.outer, kBytes * 15 / 16);  // n (P - 1) / P
  EXPECT_EQ(even.latency, 2 * 0x1p-20 + 2 * 0x1p-16);
  const Transfer one = to_owners(kBytes, kBytes, c);
  EXPECT_EQ(one.inner + one.outer, 4 * kBytes);  // Each step carries all that one owner receives.
}

TEST(Collective, BothLinksWorkAtOnce) {
  const Cluster c = machine(16, 4, Algorithm::nccl);
  EXPECT_EQ(seconds({.inner = 0x1p30, .outer = 0x1p27, .latency = 3}, c), 2 + 3);
  EXPECT_EQ(seconds({.inner = 0x1p31, .outer = 0x1p26, .latency = 3}, c), 2 + 3);
}

TEST(Collective, OneRankSendsNothing) {
  for (const Algorithm a : {Algorithm::nccl, Algorithm::direct, Algorithm::halving}) {
    const Cluster c = machine(1, 8, a);
    EXPECT_EQ(seconds(to_owners(kBytes, kBytes, c), c), 0);
    EXPECT_EQ(seconds(all_reduce(kBytes, c), c), 0);
    EXPECT_EQ(seconds(message(kBytes, c), c), 0);
  }
}

TEST(Collective, GridsOfWorkersAreMachinesOfTheirOwn) {
  const Cluster c = machine(64, 8, Algorithm::nccl);
  EXPECT_EQ(row_of(c, 8).ranks, 8);  // Rank r is in row r / 8: a row is a node.
  EXPECT_EQ(row_of(c, 8).per_node, 8);
  EXPECT_EQ(column_of(c, 8).ranks, 8);
  EXPECT_EQ(column_of(c, 8).per_node, 1);
  EXPECT_EQ(row_of(c, 1).ranks, 64);
  EXPECT_EQ(column_of(c, 64).per_node, 8);
}

}  // namespace
}  // namespace dkfac::app::planning
