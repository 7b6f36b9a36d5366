// Who is best, and whether the seeds show it: verdicts, marks and the first sentence by the paired
// interval.

#include "app/report/ranking.h"

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "app/fake_runs.h"
#include "app/logging/run_summary.h"
#include "app/report/findings.h"
#include "app/report/table.h"

namespace dkfac::app {
namespace {

using testing::best_in;
using testing::contains;
using testing::failed_run;
using testing::fake_group;
using testing::Names;

std::string lead_of(const Comparison& comparison) { return lead(comparison, Dash::plain); }

/// Cells that are marked as the best of their column.
std::int64_t marks(const Comparison& comparison) {
  std::int64_t out = 0;
  for (const auto& row : table_of(comparison, Dash::plain).rows)
    out += std::ranges::count(row, true, &Cell::best);
  return out;
}

/// Nothing in any form of the report says that a group is better than another.
void expect_nothing_shown(const std::vector<RunGroup>& groups, const Comparison& comparison) {
  EXPECT_EQ(marks(comparison), 0);
  const auto json = nlohmann::json::parse(to_json(groups, comparison, "t"));
  for (const auto& [respect, winners] : json["winners"].items())
    EXPECT_TRUE(winners.empty()) << respect;
  for (const auto& finding : json["findings"]) EXPECT_TRUE(finding["winners"].empty()) << finding;
  for (const auto& [respect, standing] : json["standings"].items())
    EXPECT_FALSE(standing["difference_shown"]) << respect;
  for (const std::string& text :
       {text_table(comparison), markdown_table(comparison), json["table"].dump(),
        json["findings"].dump(), json["caveats"].dump(), json["lead"].get<std::string>(),
        json["verdict"].get<std::string>()}) {
    for (const char* claim : {"ewest", "ighest", "heapest step:", "alone"})
      EXPECT_FALSE(contains(text, claim)) << claim << " in " << text;
  }
}

/// A run for each row of test losses, without labels; seeds 1, 2, ...
RunGroup loss_group(const std::string& name, const std::vector<std::vector<double>>& rows) {
  RunGroup group{name, {}};
  for (const auto& row : rows) {
    RunResult run;
    run.status = "ok";
    run.seed = group.runs.size() + 1;
    for (const double loss : row) {
      EpochMetrics metrics;
      metrics.epoch = std::ssize(run.epochs) + 1;
      metrics.step = 10 * metrics.epoch;
      metrics.train_seconds = static_cast<double>(metrics.epoch);
      metrics.train_accuracy = metrics.test_accuracy = NAN;
      metrics.test_loss = loss;
      add_epoch(run, metrics);
    }
    group.runs.push_back(run);
  }
  return group;
}

TEST(Losses, AreComparedWhereNoRunHasAnAccuracy) {
  const std::vector<RunGroup> groups{loss_group("adamw", {{90, 40, 35}, {91, 42, 34.1}}),
                                     loss_group("kfac", {{60, 29, 31}, {61, 28, 30}})};
  const Comparison comparison = summarize(groups, {.loss = 30});
  EXPECT_EQ(best_in(comparison, Respect::final_loss), Names{"kfac"});
  EXPECT_EQ(best_in(comparison, Respect::final_accuracy), Names{});
  EXPECT_EQ(comparison.groups[1].reached, 2);
  EXPECT_EQ(comparison.groups[1].values[Respect::seconds].mean, 2)
      << "an epoch that ends at the target reaches it";
  EXPECT_EQ(comparison.groups[1].values[Respect::best_loss].mean, 28.5);
  const std::string text = text_table(comparison);
  EXPECT_TRUE(contains(text, "loss 30")) << text;
  EXPECT_TRUE(contains(text, "kfac ends with the lowest test loss: 30.5 [30.0-31.0]; next adamw"))
      << text;
  const auto json = nlohmann::json::parse(to_json(groups, comparison, "t"));
  EXPECT_EQ(json["target_loss"], 30);
  EXPECT_EQ(json["winners"]["lowest_final_loss"], nlohmann::json{"kfac"});
  EXPECT_EQ(json["groups"][1]["curves"]["test_loss"][0][1]["mean"], 28.5);
  EXPECT_TRUE(json["runs"][0]["final_accuracy"].is_null());
  for (const std::string& words : {text, markdown_table(comparison), json["verdict"].dump()})
    EXPECT_FALSE(contains(words, "accurac")) << words;
}

TEST(Standing, NeedsAnIntervalWithoutZero) {
  // Differences 0.03 and 0.01: 0.02 +- 12.706 * 0.01; then 0.020 and 0.021: 0.0205 +- 0.0064.
  const RunGroup sgd = fake_group("sgd", {{0.80}, {0.90}});
  const std::vector<RunGroup> close{fake_group("kfac", {{0.83}, {0.91}}), sgd};
  const std::vector<RunGroup> apart{fake_group("kfac", {{0.820}, {0.921}}), sgd};
  const Comparison shown = summarize(apart, {});
  EXPECT_EQ(best_in(shown, Respect::final_accuracy), Names{"kfac"});
  EXPECT_TRUE(contains(lead_of(shown), "kfac ends with the highest test accuracy (87.05"))
      << lead_of(shown);
  EXPECT_TRUE(contains(verdict(shown), "(-2.05 \u00b1 0.64 points)")) << verdict(shown);
  const Comparison open = summarize(close, {});
  expect_nothing_shown(close, open);
  EXPECT_TRUE(contains(verdict(open),
                       "No difference shown in final accuracy: kfac 87.00 "
                       "[83.00-91.00] %, sgd 85.00 [80.00-90.00] % "
                       "(-2.00 \u00b1 12.71 points).\n"))
      << verdict(open);
  EXPECT_EQ(lead_of(open), "No difference shown in final accuracy and time of a step.");
}

TEST(Standing, HoldsInEachRespectAndOrder) {
  const std::vector<RunGroup> groups{
      fake_group("few epochs", {{0.9, 0.9, 0.9}, {0.9, 0.9, 0.91}}, 9.0),
      fake_group("few seconds", {{0.5, 0.9, 0.91}, {0.5, 0.9, 0.92}}, 2.0),
      fake_group("accurate", {{0.5, 0.6, 0.99}, {0.5, 0.6, 1.0}}, 4.0),
  };
  const Comparison c = summarize(groups, {0.9});
  EXPECT_EQ(best_in(c, Respect::epochs), Names{"few epochs"});
  EXPECT_EQ(best_in(c, Respect::seconds), Names{"few seconds"});
  EXPECT_EQ(best_in(c, Respect::final_accuracy), Names{"accurate"});
  EXPECT_EQ(best_in(c, Respect::best_accuracy), Names{"accurate"});
  EXPECT_EQ(best_in(c, Respect::step), Names{"few seconds"});
  const std::vector<std::size_t> order{0, 1, 2};
  EXPECT_TRUE(std::ranges::equal(c.standings[0].places, order, {}, &Place::group));
}

TEST(Standing, AtChanceLevelShowsNothingAndSaysSo) {
  // One of two runs leaves chance by a little: 10.72 v. 10.00.
  std::vector<RunGroup> groups{fake_group("kfac", {{0.1144}, {0.10}}),
                               fake_group("sgd", {{0.10}, {0.10}})};
  for (RunGroup& group : groups)
    for (RunResult& run : group.runs) run.chance = 0.1;
  const Comparison c = summarize(groups, {});
  expect_nothing_shown(groups, c);
  EXPECT_TRUE(contains(verdict(c), "kfac 10.72 [10.00-11.44] %, sgd 10.00 %")) << verdict(c);
  for (const char* name : {"kfac", "sgd"})
    EXPECT_TRUE(contains(verdict(c), std::string(name) +
                                         " is not shown to be above chance: 10.00 % "
                                         "of the test data are of one class."))
        << verdict(c);
  for (RunResult& run : groups[0].runs) run.final_accuracy += 0.5;
  EXPECT_FALSE(contains(verdict(summarize(groups, {})), "kfac is not shown to be above chance"));
  groups[0] = fake_group("kfac", {{0.2}, {0.5}});
  for (RunResult& run : groups[0].runs) run.chance = 0.1;
  EXPECT_FALSE(contains(verdict(summarize(groups, {})), "kfac is not shown to be above chance"))
      << "each run is, though the interval of two seeds holds chance";
  groups[1].runs[0].chance.reset();
  EXPECT_FALSE(contains(verdict(summarize(groups, {})), "sgd is not shown")) << "not known";
}

TEST(Standing, OfOneSeedSaysThatThereIsNoInterval) {
  const std::vector<RunGroup> groups{fake_group("kfac", {{0.5, 0.92}}, 3.0),
                                     fake_group("sgd", {{0.9, 0.90}})};
  const Comparison c = summarize(groups, {0.9});
  expect_nothing_shown(groups, c);
  const std::string text = "One seed each: no interval exists, so no difference is shown.";
  EXPECT_TRUE(contains(verdict(c), text)) << verdict(c);
  EXPECT_EQ(lead_of(c),
            "No difference shown in epochs to 90 %, seconds to 90 %, final accuracy and "
            "time of a step. " +
                text);
  EXPECT_TRUE(contains(verdict(c), "sgd 90.00 % (-2.00 points)")) << verdict(c);
}

TEST(Standing, NeedsSeedsInCommon) {
  std::vector<RunGroup> groups{fake_group("a", {{0.90}, {0.91}}), fake_group("b", {{0.5}, {0.51}})};
  for (RunResult& run : groups[1].runs) run.seed += 10;
  const Comparison c = summarize(groups, {});
  expect_nothing_shown(groups, c);
  EXPECT_TRUE(contains(lead_of(c), "No two groups have two good runs with the same seeds"));
}

TEST(Standing, NamesTheOnlyGroupThatReachesTheTarget) {
  const std::vector<RunGroup> groups{fake_group("kfac", {{0.5, 0.9}, {0.9, 0.92}}),
                                     fake_group("sgd", {{0.5, 0.91}, {0.6, 0.89}}),
                                     fake_group("lars", {{0.5, 0.80}, {0.6, 0.92}})};
  const Comparison none = summarize(groups, {0.99});
  EXPECT_TRUE(contains(verdict(none), "No run reached the target of 99 %.")) << verdict(none);
  EXPECT_FALSE(contains(verdict(none), "epochs")) << verdict(none);
  const std::vector<RunGroup> two{groups[1], groups[2]};
  const Comparison one = summarize(two, {0.92});
  EXPECT_TRUE(contains(verdict(one), "lars alone reaches 92 %: 2 epochs.\n")) << verdict(one);
  EXPECT_TRUE(contains(verdict(one), "sgd never reached the target (2 runs).")) << verdict(one);
  EXPECT_EQ(best_in(one, Respect::epochs), Names{}) << "a fact, without an interval";
}

TEST(Standing, PutsAGroupThatAlwaysArrivesBeforeAFasterOneThatDoesNot) {
  const std::vector<RunGroup> groups{fake_group("lucky", {{0.9, 0.9}, {0.9, 0.9}, {0.5, 0.5}}),
                                     fake_group("steady", {{0.5, 0.9}, {0.5, 0.9}, {0.5, 0.9}})};
  const Comparison c = summarize(groups, {0.9});
  EXPECT_EQ(c.standings[0].places.front().group, 1U);
  EXPECT_EQ(best_in(c, Respect::epochs), Names{}) << "neither is better in every way";
  EXPECT_TRUE(contains(verdict(c), "No difference shown in epochs to 90 %")) << verdict(c);
  EXPECT_TRUE(contains(verdict(c), "in fewer of its runs")) << verdict(c);
}

TEST(Standing, HasNoWinnerWhereEveryRunFailed) {
  const std::vector<RunGroup> groups{{"a", {failed_run("x", 1), failed_run("x", 2)}},
                                     {"b", {failed_run("y", 1)}}};
  const Comparison c = summarize(groups, {0.9});
  expect_nothing_shown(groups, c);
  EXPECT_EQ(lead_of(c), "No run has a result.");
  EXPECT_TRUE(contains(verdict(c), "2 of 2 runs of a failed.")) << verdict(c);
}

TEST(Standing, OfTiesNamesAllThatAreNotShownToBeWorse) {
  const std::vector<RunGroup> tied{fake_group("a", {{0.5, 0.9}, {0.5, 0.9}}),
                                   fake_group("b", {{0.5, 0.9}, {0.5, 0.9}})};
  expect_nothing_shown(tied, summarize(tied, {0.9}));
  const std::vector<RunGroup> groups{fake_group("a", {{0.900}, {0.910}}),
                                     fake_group("b", {{0.890}, {0.930}}),
                                     fake_group("c", {{0.500}, {0.525}})};
  // b leads; a by seed +0.01, -0.02: nothing; c -0.390, -0.405: 0.3975 +- 0.095.
  const Comparison c = summarize(groups, {});
  EXPECT_EQ(best_in(c, Respect::final_accuracy), (Names{"b", "a"}));
  EXPECT_TRUE(contains(verdict(c),
                       "b and a end with the highest test accuracy: 91.00 "
                       "[89.00-93.00] % and 90.50 [90.00-91.00] % (-0.50 \u00b1 19.06 "
                       "points), no difference shown; next c with"))
      << verdict(c);
}

TEST(Standing, TakesRoundingForNoDifference) {
  const std::vector<RunGroup> groups{fake_group("a", {{0.1 + 0.2}, {0.1 + 0.2}}),
                                     fake_group("b", {{0.3}, {0.3}})};
  ASSERT_NE(0.1 + 0.2, 0.3);
  expect_nothing_shown(groups, summarize(groups, {}));
}

}  // namespace
}  // namespace dkfac::app
