#include "kfac/schedule/budget.h"

#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"

#include "support/saved_state.h"

namespace dkfac::testing {
namespace {

using kfac::IntervalBudget, kfac::IntervalChoice, kfac::StepCosts;

/// Of two intervals, 0 for one that is chosen.
IntervalBudget budget_of(int statistics, int inverses, bool ekfac = false) {
  kfac::CurvatureOptions options;
  options.refresh.statistics_interval = statistics;
  options.refresh.inverse_interval = inverses;
  if (ekfac) options.inverse.method = kfac::InverseMethod::ekfac;
  return kfac::make_budget(options);
}

struct Chosen {
  const char* what;
  StepCosts costs;  ///< Of passes that take 1.
  int given_statistics, given_inverses, statistics, inverses;
  bool ekfac = false;
};

TEST(Budget, ChoosesTheSmallestIntervalsThatFit) {
  const Chosen all[] = {
      {"what costs nothing", {1, 0, 0, 0}, 0, 0, 1, 1},
      {"just within", {1, 0.05, 0.125, 0.075}, 0, 0, 1, 1},
      {"just above: 0.05 + 0.125 + 0.08 / 5", {1, 0.05, 0.125, 0.08}, 0, 0, 1, 5},
      {"both as much as the passes: 1 / 5 + 1 / 25", {1, 0, 1, 1}, 0, 0, 5, 25},
      {"cheap inverses: 10 / 50 + 1 / 50", {1, 0, 10, 1}, 0, 0, 50, 50},
      {"dear inverses: 1 / 10 + 10 / 100", {1, 0, 1, 10}, 0, 0, 10, 100},
      {"the longest: 1 / 100 + 200 / 1000", {1, 0, 1, 200}, 0, 0, 100, 1000},
      {"applying alone is above: longer ones gain little", {1, 3, 1, 10}, 0, 0, 20, 100},
      {"refreshing is more than applying: 200 / 500 + 0.02 < 0.5", {1, 0.5, 1, 200}, 0, 0, 50, 500},
      {"nothing fits by far", {1, 0.1, 0, 1e6}, 0, 0, 100, 1000},
      {"EKFAC needs more than one statistic a rebuild", {1, 0, 0, 0}, 0, 0, 1, 5, true},
      {"statistics given: what is left is 0.15", {1, 0, 1, 1}, 10, 0, 10, 10},
      {"statistics given, dear inverses", {1, 0, 1, 10}, 10, 0, 10, 100},
      {"statistics given, nothing left", {1, 0.1, 1, 10}, 1, 0, 1, 100},
      {"inverses given", {1, 0, 1, 5}, 0, 100, 5, 100},
      {"inverses given: no more than these", {1, 0, 10, 1}, 0, 10, 10, 10},
      {"inverses given: fewer than these", {1, 0, 10, 1}, 0, 10, 5, 10, true},
  };
  for (const Chosen& c : all) {
    const IntervalChoice choice =
        choose_intervals(c.costs, budget_of(c.given_statistics, c.given_inverses, c.ekfac));
    EXPECT_EQ(choice.statistics, c.statistics) << c.what;
    EXPECT_EQ(choice.inverses, c.inverses) << c.what;
    EXPECT_EQ(choice.share, kfac::share_of(c.costs, c.statistics, c.inverses)) << c.what;
  }
  EXPECT_DOUBLE_EQ(kfac::share_of({2, 0.5, 4, 60}, 20, 100), (0.5 + 0.2 + 0.6) / 2);
}

TEST(Budget, BeginsWithIntervalsThatFitThoseGiven) {
  constexpr int kNever = 1'000'000'000, kMost = std::numeric_limits<int>::max();
  const struct {
    int statistics, inverses, first_statistics, first_inverses;
  } all[] = {{0, 0, 10, 50}, {3, 0, 3, 50}, {100, 0, 100, 500}, {0, 100, 10, 100},
             {0, 5, 2, 5},   {0, 1, 1, 1},  {3, 7, 3, 7},       {kNever, 0, kNever, kMost}};
  for (const auto& c : all) {
    const IntervalBudget budget = budget_of(c.statistics, c.inverses);
    EXPECT_EQ(budget.is_free(), c.statistics == 0 || c.inverses == 0);
    kfac::RefreshOptions refresh = budget.given;
    put_in_force(budget, refresh);
    EXPECT_EQ(refresh.statistics_interval, c.first_statistics);
    EXPECT_EQ(refresh.inverse_interval, c.first_inverses);
    EXPECT_EQ(rebuild_interval(budget.given), c.first_inverses);
  }
}

/// Steps at 2 and 4 with these costs, after a start, or after another 100 steps.
void meter_steps(kfac::StepMeter& meter, double apply) {
  for (int i = 0; i < 120; ++i) {
    const bool statistics = i % 2 == 0, inverses = i % 4 == 0;
    meter.step.seconds = {1, apply, statistics ? 0.02 : 0, inverses ? 0.04 : 0};
    end_metered_step(meter, {statistics, inverses ? 1.0 : 0});
  }
}

TEST(Budget, ChoosesAgainOnlyWhereTheCostHasChangedTwofold) {
  kfac::replace_step_clock([] { return 0.0; });
  kfac::StepMeter meter = kfac::make_step_meter(false);
  kfac::replace_step_clock(nullptr);
  IntervalBudget budget = budget_of(0, 0);
  kfac::RefreshOptions now = budget.given;
  const auto next = [&] { return next_choice(budget, meter, now, true); };
  EXPECT_FALSE(next()) << "nothing is measured";
  meter_steps(meter, 0.2);
  const auto first = next();
  ASSERT_TRUE(first);
  EXPECT_EQ(first->statistics, 1);
  EXPECT_EQ(first->inverses, 5);
  budget.choice = *first;
  budget.choice.step = 140;
  budget.wanted = false;
  put_in_force(budget, now);
  restart(meter);
  meter_steps(meter, 0.4);
  EXPECT_FALSE(next()) << "less than twice as much";
  EXPECT_FALSE(is_measured(meter, 1, true)) << "and it begins anew";
  meter_steps(meter, 0.5);
  ASSERT_TRUE(next());
  EXPECT_EQ(next()->statistics, 20);
  EXPECT_EQ(next()->inverses, 100);
  budget.choice = {.step = 260, .statistics = 20, .inverses = 100, .share = 0.6};
  restart(meter);
  put_in_force(budget, now);
  meter_steps(meter, 0.5);
  EXPECT_FALSE(next());
  meter_steps(meter, 0.1);
  ASSERT_TRUE(next()) << "less than half of it";
  EXPECT_EQ(next()->statistics, 1);
}

TEST(Budget, LeavesToRefreshesWhatTheCallerDoesNotSpend) {
  const struct {
    double own, counted;  ///< Beside passes of 1 and applying of 0.05.
    int statistics, inverses;
    double share;
  } all[] = {
      {0, 0, 1, 5, 0.05 + 0.1 + 0.04},
      {0.1, 0.1, 2, 10, 0.15 + 0.05 + 0.02},
      {0.15, 0.15, 5, 25, 0.2 + 0.02 + 0.008},
      {0.6, 0.6, 20, 100, 0.65 + 0.005 + 0.002},  // It alone is above the budget.
      {0.6, 0, 1, 1, (0.05 + 0.1 + 0.2) / 1.6},   // Control: not counted, it is of the passes.
  };
  for (const auto& c : all) {
    kfac::replace_step_clock([] { return 0.0; });
    kfac::StepMeter meter = kfac::make_step_meter(false);
    kfac::replace_step_clock(nullptr);
    for (int i = 0; i < 120; ++i) {
      const bool statistics = i % 2 == 0, inverses = i % 4 == 0;
      meter.step.seconds = {1 + c.own, 0.05, statistics ? 0.1 : 0, inverses ? 0.2 : 0};
      count_own(meter, c.counted);
      end_metered_step(meter, {statistics, inverses ? 1.0 : 0});
    }
    const IntervalChoice choice = choose_intervals(costs_of(meter), budget_of(0, 0));
    EXPECT_EQ(choice.statistics, c.statistics) << c.own;
    EXPECT_EQ(choice.inverses, c.inverses) << c.own;
    EXPECT_NEAR(choice.share, c.share, 1e-14) << c.own;  // A few sums of numbers below 2.
    EXPECT_NEAR(choice.fixed, (0.05 + c.counted) / (1 + c.own - c.counted), 1e-14) << c.own;
  }
}

TEST(Budget, ReplaysTheChoiceOfALoadedState) {
  IntervalBudget budget = budget_of(0, 0);
  budget.choice = {.step = 400, .statistics = 5, .inverses = 25, .share = 0.24};
  budget.wanted = false;
  Saver saver;
  visit_choice(saver, budget);
  EXPECT_FALSE(budget.replayed) << "saving changes nothing";
  const auto loaded = [&saver](IntervalBudget into) {
    const std::vector<SavedState> states{saver.state};
    Loader loader(states, 0);
    visit_choice(loader, into);
    return into;
  };
  EXPECT_FALSE(loaded(budget).replayed) << "nor does loading what there is";
  const IntervalBudget resumed = loaded(budget_of(0, 0));
  EXPECT_TRUE(resumed.replayed && !resumed.wanted);
  EXPECT_EQ(resumed.choice.step, 400);
  EXPECT_EQ(resumed.choice.share, 0.24);
  kfac::RefreshOptions refresh;
  put_in_force(resumed, refresh);
  EXPECT_EQ(refresh.statistics_interval, 5);
  EXPECT_EQ(refresh.inverse_interval, 25);
  const IntervalBudget fixed = loaded(budget_of(3, 6));
  put_in_force(fixed, refresh);
  EXPECT_EQ(refresh.statistics_interval, 3) << "what is given stays";
  EXPECT_EQ(fixed.choice.step, 0);
  budget = budget_of(0, 0);
  saver = {};
  visit_choice(saver, budget);
  const IntervalBudget back = loaded(resumed);
  EXPECT_TRUE(back.wanted && !back.replayed) << "of a time before the choice";
  budget.choice = {.step = 80, .statistics = 0, .inverses = 5};
  saver = {};
  EXPECT_THROW(visit_choice(saver, budget), DataError);
}

}  // namespace
}  // namespace dkfac::testing
