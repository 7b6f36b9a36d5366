#include "comm/transport/sum_order.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "comm/conformance.h"
#include "comm/transport/reduce.h"

namespace dkfac::comm::testing {
namespace {

constexpr std::int64_t kElements = 64;

/// Sums of the library over parts by rank.
template <class T>
std::vector<T> library_sums(const std::vector<std::vector<T>>& parts) {
  std::vector<const std::byte*> inputs;
  for (const auto& part : parts) inputs.push_back(reinterpret_cast<const std::byte*>(part.data()));
  std::vector<T> out(parts[0].size());
  reduce_in_order(ReduceOp::sum, dtype_of<T>, inputs, static_cast<std::int64_t>(out.size()),
                  reinterpret_cast<std::byte*>(out.data()));
  return out;
}

template <class T>
std::vector<T> library_sums(int size) {
  std::vector<std::vector<T>> parts;
  for (int r = 0; r < size; ++r) parts.push_back(values_of<T>(r, kElements));
  return library_sums(parts);
}

template <class T>
std::vector<T> sums_in_rank_order(int size) {
  std::vector<T> out;
  for (std::int64_t i = 0; i < kElements; ++i) {
    auto sum = widen(convert<T>(value(0, i)));
    for (int r = 1; r < size; ++r) sum += widen(convert<T>(value(r, i)));
    out.push_back(narrow<T>(sum));
  }
  return out;
}

template <class T>
int differences(const std::vector<T>& a, const std::vector<T>& b) {
  int count = 0;
  for (std::size_t i = 0; i < a.size(); ++i) count += a[i] == b[i] ? 0 : 1;
  return count;
}

template <class T>
void expect_tree(int size) {
  EXPECT_EQ(library_sums<T>(size), sums_of<T>(size, kElements)) << dtype_of<T> << " of " << size;
}

int log2_up(int size) {
  int levels = 0;
  while ((1 << levels) < size) ++levels;
  return levels;
}

/// What a rank has sent and received, in segments.
struct Traffic {
  int sent = 0, received = 0, messages = 0;
};

/// The steps of all ranks, made on one thread: values of rank r for owner o are has[r][o].
/// Afterwards has[o][o] is the sum, if every message is sent, received, and added in its order.
std::vector<Traffic> play(int size, std::vector<std::vector<double>>& has) {
  std::vector<std::vector<TreeStep>> steps;
  for (int r = 0; r < size; ++r) steps.push_back(tree_steps(size, r));
  std::vector<Traffic> traffic(static_cast<std::size_t>(size));
  for (std::size_t s = 0; s < steps[0].size(); ++s) {
    std::map<std::pair<int, int>, std::vector<std::pair<TreeRange, std::vector<double>>>> sent;
    for (int r = 0; r < size; ++r)
      for (const TreeMessage& message : steps[static_cast<std::size_t>(r)][s].sent) {
        auto& ranges = sent[{r, message.peer}];
        EXPECT_TRUE(ranges.empty()) << "two messages in one step";
        ++traffic[static_cast<std::size_t>(r)].messages;
        for (const TreeRange& range : message.ranges) {
          const auto& mine = has[static_cast<std::size_t>(r)];
          ranges.push_back({range, {mine.begin() + range.first, mine.begin() + range.last}});
          traffic[static_cast<std::size_t>(r)].sent += range.last - range.first;
        }
      }
    for (int r = 0; r < size; ++r)
      for (const TreeMessage& message : steps[static_cast<std::size_t>(r)][s].received) {
        const auto ranges = sent.extract({message.peer, r});
        if (ranges.empty() || ranges.mapped().size() != message.ranges.size()) {
          ADD_FAILURE() << "rank " << message.peer << " sends rank " << r << " something else";
          continue;
        }
        for (const auto& [range, values] : ranges.mapped()) {
          traffic[static_cast<std::size_t>(r)].received += range.last - range.first;
          for (int o = range.first; o < range.last; ++o) {
            double& mine = has[static_cast<std::size_t>(r)][static_cast<std::size_t>(o)];
            const double theirs = values[static_cast<std::size_t>(o - range.first)];
            mine = range.is_lower ? theirs + mine : mine + theirs;
          }
        }
      }
    EXPECT_TRUE(sent.empty()) << "a message that no rank receives";
  }
  return traffic;
}

}  // namespace

TEST(SumOrder, IsRankOrderUpToEightRanks) {
  for (int size = 1; size <= kMostInRankOrder; ++size) {
    const std::vector<SumStep> order = sum_order(size);
    for (int r = 0; r < size; ++r) {
      EXPECT_EQ(order[static_cast<std::size_t>(r)].rank, r);
      EXPECT_EQ(order[static_cast<std::size_t>(r)].merges, r == 0 ? 0 : 1);
    }
    EXPECT_EQ(library_sums<float>(size), sums_in_rank_order<float>(size));
  }
}

TEST(SumOrder, IsOneTreeBeyond) {
  for (const int size : {9, 10, 11, 12, 13, 15, 16, 17, 24, 31, 33, 100, 128, 256, 1000}) {
    expect_tree<double>(size);
    expect_tree<float>(size);
    expect_tree<bf16>(size);
    EXPECT_GT(differences(library_sums<double>(size), sums_in_rank_order<double>(size)), 8)
        << "control: rank order gives other bits";
    EXPECT_GT(differences(library_sums<float>(size), sums_in_rank_order<float>(size)), 8);
  }
  for (const int size : {9, 12, 16}) expect_tree<f16>(size);
}

TEST(SumOrder, OfSixteenRanksAddsPartnersAtHalfTheDistanceFirst) {
  const auto sum_with = [](std::size_t large, std::size_t negative) {
    std::vector<std::vector<float>> parts(16, {0.0F});
    parts[0] = {1};
    parts[large] = {1e8F};
    parts[negative] = {-1e8F};
    return library_sums(parts)[0];
  };
  EXPECT_EQ(sum_with(4, 12), 1) << "ranks 4 and 12 cancel before rank 0 meets them";
  EXPECT_EQ(sum_with(8, 4), 0) << "control: 1 is lost beside rank 8, which it meets first";
}

TEST(TreeSteps, GiveEachOwnerTheSumOfTheTree) {
  for (const int size : {9, 10, 12, 13, 16, 17, 31, 33, 64, 100}) {
    std::vector<std::vector<double>> has(static_cast<std::size_t>(size));
    for (int r = 0; r < size; ++r) has[static_cast<std::size_t>(r)] = values_of<double>(r, size);
    const std::vector<double> expected = sums_of<double>(size, size);
    (void)play(size, has);
    for (std::size_t o = 0; o < has.size(); ++o) EXPECT_EQ(has[o][o], expected[o]) << size;
  }
}

TEST(TreeSteps, SendTheBytesOfARingInLogarithmicallyManyMessages) {
  struct Row {
    int size;
    int sent, received, messages;  ///< Most of a rank; the first two in segments, of n / size.
  };
  for (const Row& row :
       {Row{9, 8, 11, 4}, Row{12, 11, 12, 4}, Row{16, 15, 15, 4}, Row{17, 16, 20, 5},
        Row{24, 23, 24, 5}, Row{100, 99, 102, 9}, Row{256, 255, 255, 8}, Row{512, 511, 511, 9}}) {
    std::vector<std::vector<double>> has(static_cast<std::size_t>(row.size),
                                         std::vector<double>(static_cast<std::size_t>(row.size)));
    Traffic most;
    for (const Traffic& t : play(row.size, has)) {
      most.sent = std::max(most.sent, t.sent);
      most.received = std::max(most.received, t.received);
      most.messages = std::max(most.messages, t.messages);
    }
    EXPECT_EQ(tree_steps(row.size, 0).size(), static_cast<std::size_t>(log2_up(row.size)));
    EXPECT_EQ(most.sent, row.sent) << row.size;
    EXPECT_EQ(most.received, row.received) << row.size;
    EXPECT_EQ(most.messages, row.messages) << row.size;
  }
}

TEST(TreeSteps, MarkWhatIsTheSumOfSeveralRanks) {
  const std::vector<TreeStep> steps = tree_steps(16, 5);
  ASSERT_EQ(steps[0].sent.size(), 1U);
  EXPECT_FALSE(steps[0].sent[0].ranges[0].summed) << "a part of one rank travels in its own type";
  ASSERT_EQ(steps[1].sent.size(), 1U);
  EXPECT_TRUE(steps[1].sent[0].ranges[0].summed);
}

}  // namespace dkfac::comm::testing
