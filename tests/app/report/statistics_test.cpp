// Intervals over seeds: against tables of Student's distribution and values by hand.

#include "app/report/statistics.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "app/fake_runs.h"
#include "app/shared/report.h"

namespace dkfac::app {
namespace {

using testing::failed_run;
using testing::fake_group;

TEST(StudentT, HasTheQuantilesOfTheTables) {
  struct Row {
    double p;
    std::int64_t freedom;
    double t;
  };
  for (const Row& row : {Row{0.975, 1, 12.7062}, Row{0.975, 2, 4.30265}, Row{0.975, 4, 2.77645},
                         Row{0.975, 9, 2.26216}, Row{0.975, 30, 2.04227}, Row{0.975, 120, 1.97993},
                         Row{0.95, 5, 2.01505}, Row{0.995, 3, 5.84091}, Row{0.9, 1, 3.07768}})
    EXPECT_NEAR(student_t_quantile(row.p, row.freedom), row.t, 5e-6 * row.t) << row.freedom;
}

TEST(StudentT, HasTheClosedFormsOfOneAndTwoDegrees) {
  const double pi = std::acos(-1.0);
  for (const double t : {-40.0, -2.0, -0.3, 0.0, 0.1, 1.0, 7.0, 300.0}) {
    // c = 1000 roundings.
    const double tolerance = 1000 * std::numeric_limits<double>::epsilon();
    EXPECT_NEAR(student_t_cdf(t, 1), 0.5 + std::atan(t) / pi, tolerance) << t;
    EXPECT_NEAR(student_t_cdf(t, 2), 0.5 + t / (2 * std::sqrt(2 + t * t)), tolerance) << t;
  }
}

TEST(StudentT, IsSymmetricAndTendsToTheNormal) {
  EXPECT_DOUBLE_EQ(student_t_quantile(0.025, 7), -student_t_quantile(0.975, 7));
  EXPECT_NEAR(student_t_quantile(0.5, 7), 0, 1e-12);
  EXPECT_NEAR(student_t_quantile(0.975, 1000000), 1.959964, 1e-5);
}

TEST(Confidence, IsTByHand) {
  // Standard deviation 1 of three values: 4.30265 / sqrt(3).
  EXPECT_NEAR(confidence_half_width(1, 3).value(), 2.484138, 1e-5);
  EXPECT_FALSE(confidence_half_width(1, 1).has_value());
  const std::vector<double> values{1, 2, 3};
  EXPECT_NEAR(spread_of(values).half_width.value(), 2.484138, 1e-5);
  EXPECT_FALSE(spread_of(std::vector<double>{1}).half_width.has_value());
}

/// Seeds 1, 2, 3 with final accuracies that share a large effect of the seed.
std::vector<RunGroup> paired_groups() {
  return {fake_group("sgd", {{0.5, 0.70}, {0.5, 0.80}, {0.5, 0.90}}),
          fake_group("kfac", {{0.71, 0.72}, {0.5, 0.81}, {0.91, 0.93}}, 4.0)};
}

TEST(PairedDifference, IsBySeedAgainstTheFirstGroup) {
  const Comparison comparison = summarize(paired_groups(), {0.7});
  EXPECT_EQ(comparison.baseline, "sgd");
  EXPECT_FALSE(comparison.groups[0].difference.has_value());
  const Spreads& d = comparison.groups[1].difference.value();
  // Differences 0.02, 0.01, 0.03: mean 0.02, standard deviation 0.01.
  EXPECT_EQ(d[Respect::final_accuracy].count, 3);
  EXPECT_NEAR(d[Respect::final_accuracy].mean, 0.02, 1e-12);
  EXPECT_NEAR(d[Respect::final_accuracy].half_width.value(), 0.01 * 4.30265 / std::sqrt(3.0), 1e-6);
  // Epochs to 0.7: 1, 2, 1 against 2, 2, 2.
  EXPECT_NEAR(d[Respect::epochs].mean, -2.0 / 3, 1e-12);
  EXPECT_NEAR(d[Respect::seconds].mean, (4 - 4 + 8 - 4 + 4 - 4) / 3.0, 1e-12);
  // Taken apart, the seeds' effect hides the difference: that is what pairing is for.
  EXPECT_GT(comparison.groups[1].values[Respect::final_accuracy].half_width.value(), 0.2);
}

TEST(PairedDifference, LeavesOutSeedsThatOnlyOneGroupHas) {
  std::vector<RunGroup> groups = paired_groups();
  groups[1].runs[0].seed = 77;
  groups[1].runs.push_back(failed_run("x", 3));
  groups[0].runs[1].status = "failed";
  const Comparison comparison = summarize(groups, {0.7});
  const Spreads& d = comparison.groups[1].difference.value();
  EXPECT_EQ(d[Respect::final_accuracy].count, 1) << "seed 3 alone";
  EXPECT_NEAR(d[Respect::final_accuracy].mean, 0.03, 1e-12);
  EXPECT_FALSE(d[Respect::final_accuracy].half_width.has_value());
}

TEST(Intervals, StandInEveryFormOfTheReport) {
  const std::vector<RunGroup> groups = paired_groups();
  const Comparison comparison = summarize(groups, {0.7});
  // 4.30265 * 0.1 / sqrt(3) = 24.84 points around the mean.
  for (const std::string& text :
       {text_table(comparison), markdown_table(comparison),
        nlohmann::json::parse(to_json(groups, comparison, "t")).at("interval_table").dump()}) {
    EXPECT_NE(text.find("80.00 \u00b1 24.84"), std::string::npos) << text;
    EXPECT_NE(text.find("+2.00 \u00b1 2.48"), std::string::npos) << text;
  }
  const auto page = nlohmann::json::parse(to_json(groups, comparison, "t"));
  EXPECT_EQ(page.at("baseline"), "sgd");
  const auto& interval = page.at("groups").at(0).at("final_accuracy").at("confidence_95");
  EXPECT_NEAR(interval.at(0).get<double>(), 0.8 - 0.248414, 1e-5);
  EXPECT_NEAR(interval.at(1).get<double>(), 0.8 + 0.248414, 1e-5);
  EXPECT_TRUE(page.at("groups").at(0).at("difference_to_baseline").is_null());
  EXPECT_NEAR(page.at("groups")
                  .at(1)
                  .at("difference_to_baseline")
                  .at("final_accuracy")
                  .at("mean")
                  .get<double>(),
              0.02, 1e-12);
}

TEST(Intervals, AreLeftOutForOneSeed) {
  const std::vector<RunGroup> groups{fake_group("a", {{0.5}}), fake_group("b", {{0.6}})};
  const Comparison comparison = summarize(groups, {});
  EXPECT_EQ(text_table(comparison).find("\u00b1"), std::string::npos);
  const auto page = nlohmann::json::parse(to_json(groups, comparison, "t"));
  EXPECT_TRUE(page.at("groups").at(0).at("final_accuracy").at("confidence_95").is_null());
}

}  // namespace
}  // namespace dkfac::app
