#include "app/plan/timeline.h"

#include <algorithm>
#include <numeric>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"

namespace dkfac::app::planning {
namespace {

/// Two layers: the sum of the second travels while the first computes.
std::vector<Task> two_layers(double link) {
  return {{Lane::compute, Phase::backward, 2},
          {Lane::links, Phase::reduce, link, 0},
          {Lane::compute, Phase::backward, 4},
          {Lane::links, Phase::reduce, 1, 2},
          {Lane::compute, Phase::update, 1, 3}};
}

double of(const Timeline& line, Phase phase) {
  return line.phases.at(static_cast<std::size_t>(phase));
}

TEST(Timeline, HidesALinkThatIsFasterThanComputation) {
  const Timeline line = simulate(two_layers(3));  // 0-2, 2-5, 2-6, 6-7, 7-8
  EXPECT_EQ(line.ends, (std::vector<double>{2, 5, 6, 7, 8}));
  EXPECT_EQ(line.seconds, 8);
  EXPECT_EQ(of(line, Phase::backward), 6);
  EXPECT_EQ(of(line, Phase::reduce), 1);  // Only the last one is waited for.
}

TEST(Timeline, WaitsForALinkThatIsSlower) {
  const Timeline line = simulate(two_layers(10));  // 0-2, 2-12, 2-6, 12-13, 13-14
  EXPECT_EQ(line.ends, (std::vector<double>{2, 12, 6, 13, 14}));
  EXPECT_EQ(of(line, Phase::backward), 2);
  EXPECT_EQ(of(line, Phase::reduce), 11);
}

TEST(Timeline, TakesNoLessThanEachLaneAndIsTheSumOfItsPhases) {
  for (const double link : {0.0, 1.0, 3.9, 4.0, 4.1, 50.0}) {
    const Timeline line = simulate(two_layers(link));
    for (const double busy : line.busy) EXPECT_GE(line.seconds, busy);
    EXPECT_EQ(line.busy[0], 7);
    EXPECT_EQ(line.busy[1], link + 1);
    // Sums of at most 5 numbers.
    EXPECT_NEAR(std::accumulate(line.phases.begin(), line.phases.end(), 0.0), line.seconds,
                5 * 2.3e-16 * line.seconds);
  }
}

TEST(Timeline, IsMonotone) {
  const double before = simulate(two_layers(4)).seconds;
  for (std::size_t i = 0; i < two_layers(4).size(); ++i) {
    std::vector<Task> tasks = two_layers(4);
    tasks[i].seconds += 1;
    EXPECT_GE(simulate(tasks).seconds, before) << i;
    tasks[i].seconds = 0;
    EXPECT_LE(simulate(tasks).seconds, before) << i;
  }
}

TEST(Timeline, RefusesATaskThatWaitsForALaterOne) {
  EXPECT_THROW((void)simulate({{Lane::compute, Phase::update, 1, 0}}), InvalidArgument);
  EXPECT_EQ(simulate({}).seconds, 0);
}

}  // namespace
}  // namespace dkfac::app::planning
