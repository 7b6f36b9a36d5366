// Curves over epochs: mean and range over seeds.

#include <cmath>

#include <gtest/gtest.h>

#include "app/fake_runs.h"
#include "app/report/details.h"

namespace dkfac::app {
namespace {

using testing::fake_group;

TEST(CurveOf, GivesMeanAndRangeOverSeeds) {
  const RunGroup group = fake_group("a", {{0.5, 0.8}, {0.7, 0.9, 0.95}});
  const auto segments = curve_of(group, Measure::test_accuracy);
  ASSERT_EQ(segments.size(), 1U);
  const Segment& points = segments[0];
  ASSERT_EQ(points.size(), 3U) << "as long as the longest run";
  EXPECT_DOUBLE_EQ(points[0].mean, 0.6);
  EXPECT_DOUBLE_EQ(points[0].low, 0.5);
  EXPECT_DOUBLE_EQ(points[0].high, 0.7);
  EXPECT_EQ(points[0].epoch, 1);
  EXPECT_EQ(points[0].runs, 2);
  EXPECT_EQ(points[2].runs, 1);
}

TEST(CurveOf, GoesOnOverEpochsThatWereNotEvaluated) {
  RunGroup group = fake_group("a", {{0.1, NAN, 0.3}});
  group.runs[0].epochs[1].evaluated = false;
  const auto accuracy = curve_of(group, Measure::test_accuracy);
  ASSERT_EQ(accuracy.size(), 1u);
  EXPECT_EQ(accuracy[0].size(), 2u);
  EXPECT_EQ(curve_of(group, Measure::train_loss).at(0).size(), 3u);
  group.runs[0].epochs[1].evaluated = true;  // A value that is not finite breaks the curve.
  EXPECT_EQ(curve_of(group, Measure::test_accuracy).size(), 2u);
}

TEST(CurveOf, OfTopFiveIsThereWhereItWasCounted) {
  RunGroup group = fake_group("a", {{0.1, 0.2}});
  EXPECT_TRUE(curve_of(group, Measure::train_top5).empty());
  group.runs[0].epochs[1].train_top5 = 0.5;
  group.runs[0].epochs[1].test_top5 = 0.75;
  const auto mean = [&](Measure measure) { return curve_of(group, measure).at(0).at(0).mean; };
  EXPECT_EQ(mean(Measure::train_top5), 0.5);
  EXPECT_EQ(mean(Measure::test_top5), 0.75);
}

TEST(CurveOf, HasTheSeedsMeanStepsAndSeconds) {
  RunGroup group = fake_group("a", {{0.5, 0.8}}, 2.0);
  group.runs.push_back(testing::fake_run({0.5, 0.8}, 2, 4.0));
  group.runs[0].epochs[1].step = 20;
  group.runs[1].epochs[1].step = 30;
  const Point point = curve_of(group, Measure::test_accuracy)[0][1];
  EXPECT_DOUBLE_EQ(point.seconds, 6);
  EXPECT_DOUBLE_EQ(point.steps, 25);
}

TEST(CurveOf, BreaksWhereNoSeedHasAFiniteValue) {
  RunGroup group = fake_group("a", {{0.5, 0.6, 0.7, 0.8}, {0.5, 0.6, 0.7, 0.8}});
  group.runs[0].epochs[1].train_loss = NAN;
  EXPECT_EQ(curve_of(group, Measure::train_loss).size(), 1U);
  group.runs[1].epochs[1].train_loss = INFINITY;
  const auto broken = curve_of(group, Measure::train_loss);
  ASSERT_EQ(broken.size(), 2U);
  EXPECT_EQ(broken[0].size(), 1U);
  EXPECT_EQ(broken[1].size(), 2U);
}

}  // namespace
}  // namespace dkfac::app
