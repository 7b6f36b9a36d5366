// From runs to numbers and words: spreads, winners, sentences, tables.

#include <algorithm>
#include <cmath>
#include <sstream>

#include <gtest/gtest.h>

#include "app/fake_runs.h"
#include "app/report/findings.h"
#include "app/report/format.h"
#include "app/shared/report.h"

namespace dkfac::app {
namespace {

using testing::best_in;
using testing::contains;
using testing::failed_run;
using testing::fake_group;
using testing::fake_run;
using testing::Names;

TEST(SpreadOf, GivesMeanRangeAndSampleDeviation) {
  const std::vector<double> values{2, 4, 4, 6};
  const Spread s = spread_of(values);
  EXPECT_DOUBLE_EQ(s.mean, 4);
  EXPECT_DOUBLE_EQ(s.min, 2);
  EXPECT_DOUBLE_EQ(s.max, 6);
  EXPECT_DOUBLE_EQ(s.stddev, std::sqrt(8.0 / 3.0));
  EXPECT_EQ(s.count, 4);
}

TEST(SpreadOf, HandlesNoValueAndOneValue) {
  EXPECT_EQ(spread_of({}).count, 0);
  EXPECT_EQ(spread_of({}).mean, 0);
  const std::vector<double> one{-3.5};
  const Spread s = spread_of(one);
  EXPECT_EQ(s.mean, -3.5);
  EXPECT_EQ(s.min, -3.5);
  EXPECT_EQ(s.max, -3.5);
  EXPECT_EQ(s.stddev, 0);
  EXPECT_EQ(s.count, 1);
}

TEST(SpreadOf, LeavesOutWhatIsNotFinite) {
  const std::vector<double> values{NAN, 1, INFINITY, 3, -INFINITY};
  const Spread s = spread_of(values);
  EXPECT_EQ(s.count, 2);
  EXPECT_DOUBLE_EQ(s.mean, 2);
  EXPECT_DOUBLE_EQ(s.max, 3);
}

TEST(SpreadOf, MeanOfEqualValuesIsThatValue) {
  const std::vector<double> values(10, 0.1);
  EXPECT_EQ(spread_of(values).mean, 0.1);
}

TEST(Summarize, ReadsTheFirstEpochThatReachesTheTarget) {
  const std::vector<RunGroup> groups{
      fake_group("a", {{0.5, 0.9, 0.8, 0.95}, {0.5, 0.6, 0.7, 0.9}}, 3.0)};
  const GroupSummary g = summarize(groups, {0.9}).groups[0];
  EXPECT_EQ(g.runs, 2);
  EXPECT_EQ(g.reached, 2);
  EXPECT_DOUBLE_EQ(g.values[Respect::epochs].mean, 3);
  EXPECT_DOUBLE_EQ(g.values[Respect::epochs].min, 2);
  EXPECT_DOUBLE_EQ(g.values[Respect::epochs].max, 4);
  EXPECT_DOUBLE_EQ(g.values[Respect::seconds].mean, 9);
  EXPECT_DOUBLE_EQ(g.values[Respect::final_accuracy].mean, 0.925);
  EXPECT_DOUBLE_EQ(g.values[Respect::best_accuracy].max, 0.95);
  EXPECT_DOUBLE_EQ(g.values[Respect::step].mean, 0.3);
}

TEST(Summarize, UsesTheGivenTargetNotTheOneOfTheRun) {
  std::vector<RunGroup> groups{fake_group("a", {{0.5, 0.9}})};
  groups[0].runs[0].epochs_to_target = 1;
  groups[0].runs[0].seconds_to_target = 2;
  EXPECT_DOUBLE_EQ(summarize(groups, {0.9}).groups[0].values[Respect::epochs].mean, 2);
  groups[0].runs[0].epochs.clear();
  EXPECT_DOUBLE_EQ(summarize(groups, {0.9}).groups[0].values[Respect::epochs].mean, 1)
      << "believed without epochs";
}

TEST(Summarize, TakesTheTargetThatAllRunsShare) {
  std::vector<RunGroup> groups{fake_group("a", {{0.5, 0.9}}), fake_group("b", {{0.5, 0.9}})};
  EXPECT_FALSE(summarize(groups, {}).target.any());
  groups[0].runs[0].target.accuracy = 0.9;
  EXPECT_FALSE(summarize(groups, {}).target.any()) << "b has none";
  groups[1].runs[0].target.accuracy = 0.8;
  EXPECT_FALSE(summarize(groups, {}).target.any()) << "b has another";
  groups[1].runs[0].target.accuracy = 0.9;
  EXPECT_EQ(summarize(groups, {}).target.accuracy, 0.9);
  EXPECT_EQ(summarize(groups, {0.7}).target.accuracy, 0.7);
}

TEST(Summarize, CountsOnlyRunsThatReachTheTargetAndDoNotFail) {
  std::vector<RunGroup> groups{fake_group("a", {{0.9}, {0.5}, {0.91}})};
  groups[0].runs.push_back(failed_run("broke", 4));
  const GroupSummary g = summarize(groups, {0.9}).groups[0];
  EXPECT_EQ(g.runs, 4);
  EXPECT_EQ(g.failed, 1);
  EXPECT_EQ(g.reached, 2);
  EXPECT_EQ(g.values[Respect::epochs].count, 2);
  EXPECT_EQ(g.values[Respect::final_accuracy].count, 3) << "a failed run has no final accuracy";
}

TEST(Summarize, LeavesTheTargetUnsetWhereNoRunReachesIt) {
  const std::vector<RunGroup> groups{fake_group("a", {{0.5}, {0.6}})};
  const Comparison c = summarize(groups, {0.9});
  EXPECT_EQ(c.groups[0].values[Respect::epochs].count, 0);
  EXPECT_EQ(c.groups[0].values[Respect::seconds].count, 0);
  EXPECT_EQ(best_in(c, Respect::epochs), Names{});
  EXPECT_EQ(best_in(c, Respect::seconds), Names{});
}

TEST(Summarize, GivesTheRatioToTheCheapestStep) {
  const Comparison c = summarize(
      std::vector<RunGroup>{fake_group("a", {{0.9}}, 9.0), fake_group("b", {{0.9}}, 2.0)}, {});
  EXPECT_DOUBLE_EQ(c.groups[0].step_ratio, 4.5);
  EXPECT_DOUBLE_EQ(c.groups[1].step_ratio, 1.0);
}

TEST(Summarize, HandlesGroupsWithoutRunsAndNoGroups) {
  EXPECT_TRUE(summarize({}, {0.9}).groups.empty());
  const std::vector<RunGroup> groups{{"empty", {}}, {"broken", {failed_run("x")}}};
  const Comparison c = summarize(groups, {0.9});
  EXPECT_EQ(best_in(c, Respect::final_accuracy), Names{});
  EXPECT_EQ(best_in(c, Respect::step), Names{});
  EXPECT_EQ(c.groups[1].step_ratio, 0);
  EXPECT_TRUE(contains(text_table(c), "broken"));
}

TEST(Summarize, CaptionSaysWhatRunsShareAndWhereTheyDiffer) {
  std::vector<RunGroup> groups{fake_group("a", {{0.5}, {0.5}}), fake_group("b", {{0.5}, {0.5}})};
  for (RunGroup& group : groups) {
    for (RunResult& run : group.runs) run.parameters = 1234567;
  }
  groups[1].runs[0].global_batch = groups[1].runs[1].global_batch = 1024;
  EXPECT_EQ(summarize(groups, {}).caption,
            "mlp (1,234,567 parameters) on numbers, batch 64 / 1,024, 1 rank, 2 seeds");
}

TEST(Verdict, SaysWhoWinsEvenWhenTheyDiffer) {
  const std::vector<RunGroup> groups{fake_group("kfac", {{0.5, 0.9, 0.90}, {0.5, 0.9, 0.91}}, 9.0),
                                     fake_group("sgd", {{0.5, 0.6, 0.92}, {0.5, 0.6, 0.93}}, 2.0)};
  const std::string text = verdict(summarize(groups, {0.9}));
  EXPECT_TRUE(contains(text,
                       "kfac reaches 90 % in the fewest epochs: 2 epochs; next sgd with 3 "
                       "epochs (1.50 times as many, +1.00 \u00b1 0.00 epochs).\n"))
      << text;
  EXPECT_TRUE(contains(text,
                       "sgd reaches 90 % in the fewest seconds: 6.00 s; next kfac with 18.0 s "
                       "(3.00 times as long, +12.00 \u00b1 0.00 s).\n"))
      << text;
  EXPECT_TRUE(contains(text,
                       "sgd ends with the highest test accuracy: 92.50 [92.00-93.00] %; next kfac "
                       "with 90.50 [90.00-91.00] % (-2.00 \u00b1 0.00 points).\n"))
      << text;
}

TEST(Verdict, SaysWhoMissedTheTargetAndWhatFailed) {
  std::vector<RunGroup> groups{fake_group("a", {{0.9}, {0.5}}), fake_group("b", {{0.5}, {0.6}})};
  groups[1].runs.push_back(failed_run("x", 3));
  const std::string text = verdict(summarize(groups, {0.9}));
  EXPECT_TRUE(contains(text, "a reached the target in 1 of 2 runs")) << text;
  EXPECT_TRUE(contains(text, "b never reached the target (3 runs).")) << text;
  EXPECT_TRUE(contains(text, "1 of 3 runs of b failed.")) << text;
  EXPECT_FALSE(contains(text, "One seed")) << text;
  const std::string no_winner = verdict(summarize(groups, {0.99}));
  EXPECT_TRUE(contains(no_winner, "No run reached the target of 99 %.")) << no_winner;
}

TEST(Verdict, OfASingleRunTellsWithoutWinners) {
  const std::vector<RunGroup> groups{fake_group("a", {{0.5, 0.9}})};
  const std::string text = verdict(summarize(groups, {0.9}));
  EXPECT_TRUE(contains(text, "Epochs to 90 %: 2 epochs.")) << text;
  EXPECT_FALSE(contains(text, "fewest")) << text;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> out;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) out.push_back(line);
  return out;
}

TEST(TextTable, AlignsColumnsAndMarksTheBest) {
  const std::vector<RunGroup> groups{fake_group("kfac", {{0.5, 0.9}, {0.9, 0.91}}),
                                     fake_group("g\u00e9ant", {{0.5, 0.6, 0.9}, {0.5, 0.9}})};
  const auto lines = lines_of(text_table(summarize(groups, {0.9})));
  ASSERT_GE(lines.size(), 7U);
  EXPECT_TRUE(contains(lines[0], "mlp on numbers"));
  EXPECT_TRUE(lines[5].starts_with("kfac "));
  EXPECT_TRUE(contains(lines[5], "1.5 [1-2] *")) << lines[5];
  EXPECT_TRUE(contains(lines[5], "2 of 2"));
  EXPECT_TRUE(contains(lines[6], "2 of 2"));
  // Same width but for the one byte more that é has in UTF-8; the last column is never empty.
  EXPECT_EQ(lines[3].size(), lines[4].size());
  EXPECT_EQ(lines[5].size(), lines[4].size());
  EXPECT_EQ(lines[6].size(), lines[4].size() + 1);
}

TEST(TextTable, TellsTheNumberOfRunsWithoutATarget) {
  const std::vector<RunGroup> groups{fake_group("a", {{0.5}, {0.5}, {0.6}})};
  const auto lines = lines_of(text_table(summarize(groups, {})));
  EXPECT_TRUE(contains(lines[3], "runs")) << lines[3];
  EXPECT_FALSE(contains(lines[2], "reached")) << lines[2];
}

TEST(MarkdownTable, HasARowForEachGroupAndEscapesBars) {
  const std::vector<RunGroup> groups{fake_group("a|b", {{0.9}, {0.9}}),
                                     fake_group("c", {{0.5}, {0.5}})};
  const auto lines = lines_of(markdown_table(summarize(groups, {0.9})));
  ASSERT_GE(lines.size(), 4U);
  const auto bars = [](const std::string& line) { return std::ranges::count(line, '|'); };
  EXPECT_EQ(bars(lines[0]), bars(lines[1]));
  EXPECT_EQ(bars(lines[0]), bars(lines[3]));
  EXPECT_EQ(bars(lines[0]) + 1, bars(lines[2])) << "the escaped one";
  EXPECT_TRUE(contains(lines[2], "a\\|b"));
  EXPECT_TRUE(contains(lines[2], "**90.00**"));
  EXPECT_FALSE(contains(lines[3], "**50.00**"));
}

TEST(Format, GivesThreeDigits) {
  EXPECT_EQ(three_digits(0), "0");
  EXPECT_EQ(three_digits(0.012345), "0.0123");
  EXPECT_EQ(three_digits(4.5678), "4.57");
  EXPECT_EQ(three_digits(128.4), "128");
  EXPECT_EQ(three_digits(12345.6), "12346");
  EXPECT_EQ(three_digits(-4.5678), "-4.57");
  EXPECT_EQ(three_digits(1.234e30), "1.23e+30");
  EXPECT_EQ(three_digits(1.234e-30), "1.23e-30");
  EXPECT_EQ(grouped(0), "0");
  EXPECT_EQ(grouped(999), "999");
  EXPECT_EQ(grouped(1000), "1,000");
  EXPECT_EQ(grouped(-1234567), "-1,234,567");
  EXPECT_EQ(grouped(-123), "-123");
  EXPECT_EQ(percent_target(0.9), "90 %");
  EXPECT_EQ(percent_target(0.925), "92.5 %");
}

TEST(Format, ShowsARangeOnlyWhereThereIsOne) {
  const std::vector<double> one{4.0}, same{4.0, 4.0}, two{4.0, 5.0};
  EXPECT_EQ(value_text(Respect::epochs, {}, Dash::plain), "-");
  EXPECT_EQ(value_text(Respect::epochs, spread_of(one), Dash::plain), "4");
  EXPECT_EQ(value_text(Respect::epochs, spread_of(same), Dash::plain), "4");
  EXPECT_EQ(value_text(Respect::epochs, spread_of(two), Dash::plain), "4.5 [4-5]");
  EXPECT_EQ(value_text(Respect::epochs, spread_of(two), Dash::en), "4.5 [4\u20135]");
  EXPECT_EQ(value_text(Respect::step, spread_of(two), Dash::plain), "4500 [4000-5000]");
}

TEST(Summarize, ReachesTopFiveTargetsAloneAndTogether) {
  std::vector<RunGroup> groups{fake_group("a", {{0.7, 0.8, 0.9}})};
  double top5 = 0.9;
  for (EpochMetrics& epoch : groups[0].runs[0].epochs) epoch.test_top5 = top5 += 0.02;
  const auto epochs_to = [&](const Targets& target) {
    return summarize(groups, target).groups[0].values[Respect::epochs].mean;
  };
  EXPECT_EQ(epochs_to({.top5 = 0.93}), 2);
  EXPECT_EQ(epochs_to({.accuracy = 0.85, .top5 = 0.93}), 3);
  EXPECT_EQ(epochs_to({.accuracy = 0.75, .top5 = 0.95}), 3);
  EXPECT_EQ(epochs_to({.accuracy = 0.75, .top5 = 0.97}), 0);
  EXPECT_EQ(target_text({.accuracy = 0.75, .top5 = 0.93}), "75 % and top-5 93 %");
  EXPECT_EQ(target_text({.top5 = 0.93}), "top-5 93 %");
  const std::string table = text_table(summarize(groups, {.top5 = 0.93}));
  EXPECT_NE(table.find("top-5 93 %"), std::string::npos) << table;
}

}  // namespace
}  // namespace dkfac::app
