#include "kfac/schedule/stagger.h"

#include <algorithm>
#include <numeric>
#include <set>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"
#include "dkfac/core/random.h"

namespace dkfac::kfac {
namespace {

double flops_at(const std::vector<StaggerItem>& items, const std::vector<int>& offsets, int owner,
                int offset) {
  double sum = 0;
  for (std::size_t i = 0; i < items.size(); ++i)
    if (items[i].owner == owner && offsets[i] == offset) sum += items[i].flops;
  return sum;
}

TEST(StaggerOffsets, GiveNoStepOfAnOwnerMoreThanItsShareAndOneItem) {
  Random random(5);
  for (const int interval : {1, 2, 3, 7, 10, 100}) {
    std::vector<StaggerItem> items;
    for (int i = 0; i < 40; ++i) items.push_back({i % 3, 1 + 100 * random.uniform()});
    const std::vector<int> offsets = stagger_offsets(items, interval);
    for (const int owner : {0, 1, 2}) {
      double total = 0, longest = 0;
      std::set<int> used;
      for (std::size_t i = 0; i < items.size(); ++i) {
        EXPECT_GE(offsets[i], 0);
        EXPECT_LT(offsets[i], interval);
        if (items[i].owner != owner) continue;
        total += items[i].flops;
        longest = std::max(longest, items[i].flops);
        used.insert(offsets[i]);
      }
      const auto bins =
          std::min<std::ptrdiff_t>(interval, std::ranges::count(items, owner, &StaggerItem::owner));
      EXPECT_EQ(std::ssize(used), bins);
      for (int offset = 0; offset < interval; ++offset)
        EXPECT_LE(flops_at(items, offsets, owner, offset),
                  total / static_cast<double>(bins) + longest);
    }
  }
}

TEST(StaggerOffsets, AreSplitLongestFirst) {
  // By hand: 9 | 7 | 5, then 4 to the last, 3 to the second, 2 to the first (9; the tie goes to the
  // earliest).
  const std::vector<StaggerItem> items{{0, 4}, {0, 9}, {0, 2}, {0, 7}, {0, 5}, {0, 3}};
  EXPECT_EQ(stagger_offsets(items, 3), (std::vector<int>{2, 0, 0, 1, 2, 1}));
}

TEST(StaggerOffsets, LieEvenlyApartInALongInterval) {
  const std::vector<StaggerItem> items{{0, 3}, {0, 2}, {0, 1}, {1, 1}};
  EXPECT_EQ(stagger_offsets(items, 30), (std::vector<int>{0, 10, 20, 0}));
}

TEST(StaggerOffsets, OfOneStepAreAllThatStep) {
  EXPECT_EQ(stagger_offsets(std::vector<StaggerItem>(5, {0, 1}), 1), (std::vector<int>(5, 0)));
  EXPECT_TRUE(stagger_offsets({}, 4).empty());
  EXPECT_THROW((void)stagger_offsets({}, 0), InvalidArgument);
}

}  // namespace
}  // namespace dkfac::kfac
