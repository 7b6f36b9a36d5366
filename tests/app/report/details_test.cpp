// What the report tells of a group: activities of a step, loading, staleness.

#include "app/report/details.h"

#include <gtest/gtest.h>

#include "app/fake_runs.h"

namespace dkfac::app {
namespace {

using testing::fake_group;

TEST(StepSeconds, AreMeansOfAStepWithoutEvaluation) {
  RunGroup group = fake_group("a", {{0.5}, {0.5}, {0.5}});
  for (RunResult& run : group.runs) run.steps = 10;
  group.runs[0].activity_seconds = {{"update", 1}, {"data", 2}, {"evaluation", 9}, {"other", 1}};
  group.runs[1].activity_seconds = {{"update", 3}, {"data", 2}, {"inverse", 1}};
  const std::map<std::string, double> seconds = step_seconds(group);
  ASSERT_EQ(seconds.size(), 4U) << "evaluation is no part of a step";
  EXPECT_DOUBLE_EQ(seconds.at("data"), 0.2) << "the third run measured nothing";
  EXPECT_DOUBLE_EQ(seconds.at("inverse"), 0.05) << "no time in the run that lacks it";
  EXPECT_DOUBLE_EQ(seconds.at("update"), 0.2);
  EXPECT_DOUBLE_EQ(seconds.at("other"), 0.05);
  EXPECT_TRUE(step_seconds(fake_group("a", {{0.5}})).empty()) << "nothing measured";
}

TEST(LoadingOfPhotographs, IsKnownWhereThereAreSome) {
  RunGroup group = fake_group("a", {{0.5, 0.6}});
  EXPECT_FALSE(loading_of(group).has_value());
  auto& epochs = group.runs[0].epochs;
  epochs[0].loading = {.wait_fraction = 0.5, .images = 300, .decode_s = 2, .resize_s = 1, .bad = 1};
  epochs[1].loading = {.wait_fraction = 0.2, .images = 300, .decode_s = 2, .resize_s = 1, .bad = 2};
  const LoadingMetrics loading = loading_of(group).value();
  EXPECT_DOUBLE_EQ(loading.wait_fraction, 0.35);
  EXPECT_DOUBLE_EQ(loading.rate(loading.all_s()).value(), 100);
  EXPECT_FALSE(loading.rate(loading.read_s).has_value());
  EXPECT_DOUBLE_EQ(loading.rate(loading.decode_s).value(), 150);
  EXPECT_DOUBLE_EQ(loading.rate(loading.resize_s).value(), 300);
  EXPECT_EQ(loading.bad, 2) << "of the run so far, not a sum over epochs";
}

TEST(StalenessOf, IsThatOfTheAdaptiveRuleAlone) {
  RunGroup group = fake_group("a", {{0.5}, {0.4}, {0.4}});
  group.runs[0].curvature.a_all = 5;
  EXPECT_FALSE(staleness_of(group).has_value()) << "fixed intervals";
  for (std::size_t i : {1U, 2U}) {
    CurvatureResult& c = group.runs[i].curvature;
    c.a_all = c.g_all = 8;
    c.a_renewed = 2;
    c.g_renewed = 4;
    c.bytes = 60;
    c.bytes_skipped = 20;
    c.flops = 15;
    c.flops_skipped = 45;
    c.intervals = {{1, 1, 1, 0}, {2, 1.5, 1, 0}};
  }
  const StalenessSummary staleness = staleness_of(group).value();
  EXPECT_EQ(staleness.a_kept.count, 2);
  EXPECT_DOUBLE_EQ(staleness.a_kept.mean, 0.25);
  EXPECT_DOUBLE_EQ(staleness.g_kept.mean, 0.5);
  EXPECT_DOUBLE_EQ(staleness.bytes_saved.mean, 0.25);
  EXPECT_DOUBLE_EQ(staleness.flops_saved.mean, 0.75);
  EXPECT_EQ(staleness.first, &group.runs[1]);
}

}  // namespace
}  // namespace dkfac::app
