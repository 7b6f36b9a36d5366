#include "kfac/schedule/spread.h"

#include <algorithm>
#include <numeric>
#include <set>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"
#include "dkfac/core/random.h"

namespace dkfac::kfac {
namespace {

double flops_at(const std::vector<SpreadItem>& items, const std::vector<int>& phases, int owner,
                int phase) {
  double sum = 0;
  for (std::size_t i = 0; i < items.size(); ++i)
    if (items[i].owner == owner && phases[i] == phase) sum += items[i].flops;
  return sum;
}

TEST(SpreadPhases, GiveNoStepOfAnOwnerMoreThanItsShareAndOneItem) {
  Random random(5);
  for (const int interval : {1, 2, 3, 7, 10, 100}) {
    std::vector<SpreadItem> items;
    for (int i = 0; i < 40; ++i) items.push_back({i % 3, 1 + 100 * random.uniform()});
    const std::vector<int> phases = spread_phases(items, interval);
    for (const int owner : {0, 1, 2}) {
      double total = 0, longest = 0;
      std::set<int> used;
      for (std::size_t i = 0; i < items.size(); ++i) {
        EXPECT_GE(phases[i], 0);
        EXPECT_LT(phases[i], interval);
        if (items[i].owner != owner) continue;
        total += items[i].flops;
        longest = std::max(longest, items[i].flops);
        used.insert(phases[i]);
      }
      const auto bins =
          std::min<std::ptrdiff_t>(interval, std::ranges::count(items, owner, &SpreadItem::owner));
      EXPECT_EQ(std::ssize(used), bins);
      for (int phase = 0; phase < interval; ++phase)
        EXPECT_LE(flops_at(items, phases, owner, phase),
                  total / static_cast<double>(bins) + longest);
    }
  }
}

TEST(SpreadPhases, AreSplitLongestFirst) {
  // By hand: 9 | 7 | 5, then 4 to the last, 3 to the second, 2 to the first (9, tie broken early).
  const std::vector<SpreadItem> items{{0, 4}, {0, 9}, {0, 2}, {0, 7}, {0, 5}, {0, 3}};
  EXPECT_EQ(spread_phases(items, 3), (std::vector<int>{2, 0, 0, 1, 2, 1}));
}

TEST(SpreadPhases, LieEvenlyApartInALongInterval) {
  const std::vector<SpreadItem> items{{0, 3}, {0, 2}, {0, 1}, {1, 1}};
  EXPECT_EQ(spread_phases(items, 30), (std::vector<int>{0, 10, 20, 0}));
}

TEST(SpreadPhases, OfOneStepAreAllThatStep) {
  EXPECT_EQ(spread_phases(std::vector<SpreadItem>(5, {0, 1}), 1), (std::vector<int>(5, 0)));
  EXPECT_TRUE(spread_phases({}, 4).empty());
  EXPECT_THROW((void)spread_phases({}, 0), InvalidArgument);
}

}  // namespace
}  // namespace dkfac::kfac
