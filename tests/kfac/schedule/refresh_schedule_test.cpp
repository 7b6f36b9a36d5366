#include "kfac/schedule/refresh_schedule.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "support/saved_state.h"

// Which step refreshes what, without any data.
namespace dkfac::testing {
namespace {

using kfac::CurvatureOptions, kfac::RefreshDecision, kfac::RefreshSchedule, kfac::RefreshEntry;

/// Two layers with factors (0, 1 and 2, 3) and one BatchNorm (5), of two owners.
RefreshSchedule make_timetable(const CurvatureOptions& options) {
  std::vector<RefreshEntry> entries(6);
  for (const int i : {0, 1, 2, 3, 5}) {
    RefreshEntry& e = entries[static_cast<std::size_t>(i)];
    e.exists = true;
    e.inverted = i < 4;
    e.owner = i / 2 % 2;
    e.inverse_flops = i < 4 ? 10 + i : 0;
  }
  RefreshSchedule schedule(std::move(entries));
  schedule.configure(options);
  return schedule;
}

/// Steps out of `steps` in which statistic `index` is refreshed, or in which its inverse is
/// rebuilt.
struct Renewals {
  std::vector<int> refreshed, rebuilt;
};
std::vector<Renewals> run(
    RefreshSchedule& schedule, int from, int to,
    const std::vector<RefreshDecision>& decisions = std::vector<RefreshDecision>(6)) {
  std::vector<Renewals> all(6);
  for (int step = from; step < to; ++step) {
    for (int i = 0; i < schedule.size(); ++i) {
      Renewals& r = all[static_cast<std::size_t>(i)];
      if (schedule.due(i)) r.refreshed.push_back(step);
      if (schedule.rebuild_due(i)) r.rebuilt.push_back(step);
    }
    schedule.advance(decisions);
  }
  return all;
}

using Steps = std::vector<int>;

CurvatureOptions intervals(int statistics, int inverses) {
  CurvatureOptions options;
  options.refresh.statistics_interval = statistics;
  options.refresh.inverse_interval = inverses;
  return options;
}

TEST(RefreshSchedule, RefreshesAndRebuildsAtFixedIntervals) {
  RefreshSchedule schedule = make_timetable(intervals(2, 4));
  const auto all = run(schedule, 0, 10);
  for (const std::size_t i : {0U, 1U, 2U, 3U}) {
    EXPECT_EQ(all[i].refreshed, (Steps{0, 2, 4, 6, 8}));
    EXPECT_EQ(all[i].rebuilt, (Steps{0, 4, 8}));
  }
  EXPECT_EQ(all[5].refreshed, (Steps{0, 2, 4, 6, 8}));
  EXPECT_TRUE(all[5].rebuilt.empty());
  EXPECT_TRUE(all[4].refreshed.empty());  // a BatchNorm has no A
}

TEST(RefreshSchedule, RebuildsNothingFromWhatHasNotChanged) {
  RefreshSchedule schedule = make_timetable(intervals(6, 2));
  EXPECT_EQ(run(schedule, 0, 14)[1].rebuilt, (Steps{0, 6, 12}));
}

TEST(RefreshSchedule, CountsAChangedIntervalFromTheLastRefresh) {
  RefreshSchedule schedule = make_timetable(intervals(10, 10));
  EXPECT_EQ(run(schedule, 0, 13)[0].refreshed, (Steps{0, 10}));
  schedule.configure(intervals(5, 5));
  const auto shorter = run(schedule, 13, 21);
  EXPECT_EQ(shorter[0].refreshed, (Steps{15, 20}));
  EXPECT_EQ(shorter[0].rebuilt, (Steps{15, 20}));
  schedule.configure(intervals(7, 7));
  EXPECT_EQ(run(schedule, 21, 35)[0].refreshed, (Steps{27, 34}));
  schedule.configure(intervals(1, 1));  // overdue is due at once
  EXPECT_EQ(run(schedule, 35, 37)[0].refreshed, (Steps{35, 36}));
}

TEST(RefreshSchedule, RebuildsForAChangedDampingAtTheNextStepOfInverses) {
  RefreshSchedule schedule = make_timetable(intervals(100, 3));
  EXPECT_EQ(run(schedule, 0, 5)[2].rebuilt, (Steps{0}));
  schedule.damping_changed();
  EXPECT_EQ(run(schedule, 5, 12)[2].rebuilt, (Steps{6}));
}

TEST(RefreshSchedule, LetsEveryStatisticFollowItsOwnInterval) {
  CurvatureOptions options;
  options.refresh.staleness = kfac::Staleness::adaptive;
  RefreshSchedule schedule = make_timetable(options);
  std::vector<RefreshDecision> decisions(6);
  decisions[0].interval = 3;
  decisions[5].interval = 4;
  const auto all = run(schedule, 0, 9, decisions);
  EXPECT_EQ(all[0].refreshed, (Steps{0, 3, 6}));
  EXPECT_EQ(all[0].rebuilt, (Steps{0, 3, 6}));
  EXPECT_EQ(all[1].refreshed, (Steps{0, 1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(all[5].refreshed, (Steps{0, 4, 8}));
  EXPECT_EQ(schedule.interval(0), 3);
  EXPECT_EQ(schedule.entry(0).intervals.before, 3);
  kfac::StatisticReport report;
  schedule.describe(0, report);
  EXPECT_EQ(report.age, 2);  // refreshed in step 6, now after step 8
}

TEST(RefreshSchedule, GivesEveryInverseItsOwnStepOfTheIntervalWhenStaggered) {
  CurvatureOptions options = intervals(1, 3);
  options.refresh.stagger_inverses = true;
  RefreshSchedule schedule = make_timetable(options);
  const auto all = run(schedule, 0, 10);
  for (const std::size_t i : {0U, 1U, 2U, 3U}) {
    // All in the first step, then once per interval.
    EXPECT_EQ(all[i].rebuilt.front(), 0);
    const int offset = schedule.entry(static_cast<int>(i)).offset;
    Steps expected{0};
    for (int step = 1; step < 10; ++step)
      if (step % 3 == offset) expected.push_back(step);
    EXPECT_EQ(all[i].rebuilt, expected);
  }
  // Owner 0 has 0 and 1, owner 1 has 2 and 3: never two of one owner in one step.
  EXPECT_NE(schedule.entry(0).offset, schedule.entry(1).offset);
  EXPECT_NE(schedule.entry(2).offset, schedule.entry(3).offset);
}

TEST(RefreshSchedule, ContinuesFromItsStateUnderEveryRule) {
  CurvatureOptions adaptive, spread = intervals(2, 3);
  adaptive.refresh.staleness = kfac::Staleness::adaptive;
  spread.refresh.stagger_inverses = true;
  std::vector<RefreshDecision> decisions(6);
  decisions[2] = {.interval = 5, .drift = 0.25, .exponent = 3};
  const std::vector<std::string> names{"a.a", "a.g", "b.a", "b.g", "c.a", "c.fisher"};
  for (const CurvatureOptions& options : {intervals(2, 3), adaptive, spread})
    for (int stop = 0; stop < 9; ++stop) {
      RefreshSchedule whole = make_timetable(options), resumed = make_timetable(options);
      (void)run(whole, 0, stop, decisions);
      Saver saver;
      whole.visit_state(saver, names);
      const std::vector<SavedState> ranks{saver.state};
      Loader loader(ranks, 0);
      resumed.visit_state(loader, names);
      const auto expected = run(whole, stop, 20, decisions),
                 actual = run(resumed, stop, 20, decisions);
      for (std::size_t i = 0; i < 6; ++i) {
        EXPECT_EQ(actual[i].refreshed, expected[i].refreshed) << stop;
        EXPECT_EQ(actual[i].rebuilt, expected[i].rebuilt) << stop;
      }
      EXPECT_EQ(resumed.entry(2).exponent, whole.entry(2).exponent);
    }
}

}  // namespace
}  // namespace dkfac::testing
