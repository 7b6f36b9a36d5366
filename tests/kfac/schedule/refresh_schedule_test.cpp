#include "kfac/schedule/refresh_schedule.h"

#include <algorithm>
#include <cstring>
#include <functional>

#include <gtest/gtest.h>

#include "support/natural_gradient.h"
#include "support/saved_state.h"

// Which step refreshes what, without any data.
namespace dkfac::testing {
namespace {

using kfac::CurvatureOptions, kfac::RefreshDecision, kfac::RefreshSchedule, kfac::RefreshEntry;

/// Two layers with factors (0, 1 and 2, 3) and one BatchNorm (4), of two owners.
RefreshSchedule make_timetable(const CurvatureOptions& options) {
  std::vector<RefreshEntry> entries(5);
  for (int i = 0; i < 5; ++i) {
    RefreshEntry& e = entries[static_cast<std::size_t>(i)];
    e.inverted = i < 4;
    e.layer = i / 2;
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
    const std::vector<RefreshDecision>& decisions = std::vector<RefreshDecision>(5)) {
  std::vector<Renewals> all(5);
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
  CurvatureOptions options = natural_gradient();
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
  EXPECT_EQ(all[4].refreshed, (Steps{0, 2, 4, 6, 8}));
  EXPECT_TRUE(all[4].rebuilt.empty());
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

TEST(RefreshSchedule, KeepsWhatDoesNotDependOnTheDamping) {
  std::vector<RefreshEntry> entries(2);
  for (RefreshEntry& e : entries) e.inverted = true;
  entries[1].damped = false;
  RefreshSchedule schedule(std::move(entries));
  schedule.configure(intervals(100, 3));
  for (int step = 0; step < 3; ++step) schedule.advance(std::vector<RefreshDecision>(2));
  schedule.damping_changed();
  EXPECT_TRUE(schedule.rebuild_due(0));
  EXPECT_FALSE(schedule.rebuild_due(1));
}

TEST(RefreshSchedule, LetsEveryStatisticFollowItsOwnInterval) {
  CurvatureOptions options = natural_gradient();
  options.refresh.staleness = kfac::Staleness::adaptive;
  RefreshSchedule schedule = make_timetable(options);
  std::vector<RefreshDecision> decisions(5);
  decisions[0].interval = 3;
  decisions[4].interval = 4;
  const auto all = run(schedule, 0, 9, decisions);
  EXPECT_EQ(all[0].refreshed, (Steps{0, 3, 6}));
  EXPECT_EQ(all[0].rebuilt, (Steps{0, 3, 6}));
  EXPECT_EQ(all[1].refreshed, (Steps{0, 1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(all[4].refreshed, (Steps{0, 4, 8}));
  EXPECT_EQ(schedule.interval(0), 3);
  EXPECT_EQ(schedule.entry(0).intervals.before, 3);
  kfac::StatisticReport report;
  schedule.describe(0, report);
  EXPECT_EQ(report.age, 2);  // refreshed in step 6, now after step 8
}

CurvatureOptions early(int statistics, int inverses) {
  CurvatureOptions options = intervals(statistics, inverses);
  options.refresh.early_refreshes = true;
  return options;
}

TEST(RefreshSchedule, BeginsWithEarlyRefreshes) {
  RefreshSchedule schedule = make_timetable(early(10, 100));
  const auto all = run(schedule, 0, 500);
  // Steps from 0. Statistics 1 to 10, and then every 10 steps: number k > 10 in step 9 + 10 (k-10).
  Steps refreshed{0, 1, 2, 3, 4, 5, 6, 7, 8};
  for (int step = 9; step < 500; step += 10) refreshed.push_back(step);
  // Inverses after 1, 2, 3, 5, 8, 12, 18 and 27 of them; 41 would come 140 steps later.
  const Steps rebuilt{0, 1, 2, 4, 7, 29, 89, 179, 279, 379, 479};
  for (const std::size_t i : {0U, 1U, 2U, 3U}) {
    EXPECT_EQ(all[i].refreshed, refreshed);
    EXPECT_EQ(all[i].rebuilt, rebuilt);
  }
  EXPECT_EQ(all[4].refreshed, refreshed);
  EXPECT_TRUE(all[4].rebuilt.empty());
}

TEST(RefreshSchedule, EndsEarlyRebuildsAtTheIntervalOfTheInverses) {
  RefreshSchedule every = make_timetable(early(1, 4));
  // 1, 2, 3, 5, 8; 12 is 4 steps after it.
  EXPECT_EQ(run(every, 0, 24)[0].rebuilt, (Steps{0, 1, 2, 4, 7, 11, 15, 19, 23}));
  RefreshSchedule plain = make_timetable(early(1, 1));
  EXPECT_EQ(run(plain, 0, 5)[0].rebuilt, (Steps{0, 1, 2, 3, 4}));
  // An interval that changes counts at once, and what has ended does not begin again.
  RefreshSchedule changed = make_timetable(early(10, 100));
  EXPECT_EQ(run(changed, 0, 10)[0].rebuilt, (Steps{0, 1, 2, 4, 7}));
  changed.configure(early(10, 20));
  EXPECT_EQ(run(changed, 10, 70)[0].rebuilt, (Steps{29, 49, 69}));
  changed.configure(early(10, 100));
  EXPECT_EQ(run(changed, 70, 300)[0].rebuilt, (Steps{169, 269}));
}

TEST(RefreshSchedule, KeepsInversesInStepsWithStatisticsAfterEarlyRefreshes) {
  for (const int interval : {5, 7, 10}) {
    RefreshSchedule schedule = make_timetable(early(interval, interval));
    const Renewals all = run(schedule, 0, 60)[0];
    Steps regular;  // The statistics of the early steps end with step 9.
    for (int step = 9 + interval; step < 60; step += interval) regular.push_back(step);
    const auto late = static_cast<std::ptrdiff_t>(regular.size()) - (interval == 5 ? 1 : 0);
    EXPECT_TRUE(std::equal(regular.end() - late, regular.end(), all.rebuilt.end() - late))
        << interval;
  }
}

TEST(RefreshSchedule, StaggersInversesAfterEarlyRefreshes) {
  CurvatureOptions options = early(1, 4);
  options.refresh.stagger_inverses = true;
  RefreshSchedule schedule = make_timetable(options);
  const auto all = run(schedule, 0, 20);
  // One layer per owner, both in the first step of a cycle, which begins after the last rebuild.
  for (const std::size_t i : {0U, 1U, 2U, 3U})
    EXPECT_EQ(all[i].rebuilt, (Steps{0, 1, 2, 4, 7, 11, 12, 16}));
}

TEST(RefreshSchedule, ContinuesEarlyRefreshesFromAState) {
  const std::vector<std::string> names{"a", "b", "c", "d", "e"};
  const auto states = [&](RefreshSchedule& from, const CurvatureOptions& options) {
    Saver saver;
    from.visit_state(saver, names);
    RefreshSchedule to = make_timetable(options);
    const std::vector<SavedState> ranks{saver.state};
    Loader loader(ranks, 0);
    to.visit_state(loader, names);
    return to;
  };
  const CurvatureOptions options = early(10, 100);
  RefreshSchedule whole = make_timetable(options);
  const auto expected = run(whole, 0, 300);
  for (const int stop : {0, 1, 3, 9, 10, 20, 50, 89, 90, 200}) {
    RefreshSchedule first = make_timetable(options);
    Steps refreshed = run(first, 0, stop)[0].refreshed;
    RefreshSchedule second = states(first, options);
    const Renewals rest = run(second, stop, 300)[0];
    refreshed.insert(refreshed.end(), rest.refreshed.begin(), rest.refreshed.end());
    EXPECT_EQ(refreshed, expected[0].refreshed) << stop;
    Steps rebuilt;
    for (const int step : expected[0].rebuilt)
      if (step >= stop) rebuilt.push_back(step);
    EXPECT_EQ(rest.rebuilt, rebuilt) << stop;
  }
  // Where the option is off, those of the state end.
  RefreshSchedule first = make_timetable(options);
  (void)run(first, 0, 9);
  RefreshSchedule second = states(first, intervals(10, 100));
  EXPECT_EQ(run(second, 9, 300)[0].rebuilt, (Steps{107, 207}));
}

/// `layers` layers of one owner, with two equal factors each.
RefreshSchedule make_staggered(int layers, int interval) {
  std::vector<RefreshEntry> entries;
  for (int i = 0; i < 2 * layers; ++i) {
    RefreshEntry e;
    e.inverted = true;
    e.layer = i / 2;
    e.inverse_flops = 1;
    entries.push_back(e);
  }
  RefreshSchedule schedule(std::move(entries));
  CurvatureOptions options = intervals(1, interval);
  options.refresh.stagger_inverses = true;
  schedule.configure(options);
  return schedule;
}

/// Sets the interval before each step; returns the steps in which each inverse is rebuilt.
std::vector<Steps> run_changing(RefreshSchedule& schedule, int steps,
                                const std::function<int(int step)>& interval) {
  std::vector<Steps> rebuilt(static_cast<std::size_t>(schedule.size()));
  const std::vector<RefreshDecision> decisions(rebuilt.size());
  for (int step = 0; step < steps; ++step) {
    CurvatureOptions options = intervals(1, interval(step));
    options.refresh.stagger_inverses = true;
    schedule.configure(options);
    for (int i = 0; i < schedule.size(); ++i)
      if (schedule.rebuild_due(i)) rebuilt[static_cast<std::size_t>(i)].push_back(step);
    schedule.advance(decisions);
  }
  return rebuilt;
}

TEST(RefreshSchedule, GivesEveryLayerItsOwnStepOfTheIntervalWhenStaggered) {
  RefreshSchedule schedule = make_staggered(3, 3);
  const std::vector<Steps> rebuilt = run_changing(schedule, 10, [](int) { return 3; });
  for (int i = 0; i < 6; ++i) {
    // All in the first step, then once per interval, both factors of a layer together.
    EXPECT_EQ(schedule.entry(i).offset, i / 2);
    Steps expected{0};
    for (int step = 1; step < 10; ++step)
      if (step % 3 == i / 2) expected.push_back(step);
    EXPECT_EQ(rebuilt[static_cast<std::size_t>(i)], expected);
  }
}

TEST(RefreshSchedule, LetsNoStaggeredInverseWaitForLongWhileTheIntervalChanges) {
  const auto growing = [](int step) { return step < 300 ? 10 + 3 * step / 10 : 100; };
  const auto falling = [](int step) { return std::max(10, 100 - step / 3); };
  for (const std::function<int(int)>& interval :
       {std::function<int(int)>(growing), std::function<int(int)>(falling)}) {
    RefreshSchedule schedule = make_staggered(20, interval(0));
    for (const Steps& rebuilt : run_changing(schedule, 700, interval)) {
      for (std::size_t i = 1; i < rebuilt.size(); ++i)
        EXPECT_LE(2 * (rebuilt[i] - rebuilt[i - 1]),
                  3 * std::max(interval(rebuilt[i - 1]), interval(rebuilt[i])));
      EXPECT_GE(rebuilt.back(), 600);
    }
  }
}

TEST(RefreshSchedule, RebuildsWhatWaitsWhereAStaggeredIntervalBecomesShorter) {
  RefreshSchedule schedule = make_staggered(4, 40);
  const std::vector<Steps> rebuilt =
      run_changing(schedule, 26, [](int step) { return step < 15 ? 40 : 8; });
  // Offsets 0, 10, 20 and 30 of 40 steps; then 0, 2, 4 and 6 of 8, after the step that ends it.
  EXPECT_EQ(rebuilt[0], (Steps{0, 16, 24}));
  EXPECT_EQ(rebuilt[2], (Steps{0, 10, 18}));
  EXPECT_EQ(rebuilt[4], (Steps{0, 15, 20}));
  EXPECT_EQ(rebuilt[7], (Steps{0, 15, 22}));
}

TEST(RefreshSchedule, GoesOnFromAStateOfAnEarlierVersion) {
  // In which factors had offsets of their own, and a cycle ended with the first step of the next.
  RefreshSchedule saved = make_staggered(2, 6), resumed = make_staggered(2, 6);
  (void)run_changing(saved, 6, [](int) { return 6; });
  const std::vector<std::string> names{"a.a", "a.g", "b.a", "b.g"};
  Saver saver;
  saved.visit_state(saver, names);
  const auto set = [&saver](const std::string& name, std::int64_t value) {
    std::memcpy(saver.state.at(name).bytes.data(), &value, sizeof(value));
  };
  set("last_rebuild", 0);
  set("a.g_offset", 1);
  set("b.g_offset", 4);
  const std::vector<SavedState> ranks{saver.state};
  Loader loader(ranks, 0);
  resumed.visit_state(loader, names);
  const std::vector<Steps> rebuilt = run_changing(resumed, 12, [](int) { return 6; });
  EXPECT_EQ(rebuilt, (std::vector<Steps>{{0, 6}, {0, 6}, {3, 9}, {3, 9}}));
}

TEST(RefreshSchedule, BoundsTheIntervalsOfALoadedState) {
  CurvatureOptions adaptive = natural_gradient();
  adaptive.refresh.staleness = kfac::Staleness::adaptive;
  std::vector<RefreshDecision> decisions(5);
  decisions[0].interval = 34;
  const std::vector<std::string> names{"a.a", "a.g", "b.a", "b.g", "c.fisher"};
  RefreshSchedule free = make_timetable(adaptive);
  (void)run(free, 0, 2, decisions);
  EXPECT_EQ(free.interval(0), 34);
  Saver saver;
  free.visit_state(saver, names);
  adaptive.refresh.max_interval = 3;
  RefreshSchedule bounded = make_timetable(adaptive);
  const std::vector<SavedState> ranks{saver.state};
  Loader loader(ranks, 0);
  bounded.visit_state(loader, names);
  EXPECT_EQ(bounded.interval(0), 3);
  EXPECT_EQ(run(bounded, 2, 10, decisions)[0].refreshed, (Steps{3, 6, 9}));
}

TEST(RefreshSchedule, ContinuesFromItsStateUnderEveryRule) {
  CurvatureOptions adaptive, spread = intervals(2, 3);
  adaptive.refresh.staleness = kfac::Staleness::adaptive;
  spread.refresh.stagger_inverses = true;
  std::vector<RefreshDecision> decisions(5);
  decisions[2] = {.interval = 5, .drift = 0.25, .exponent = 3};
  const std::vector<std::string> names{"a.a", "a.g", "b.a", "b.g", "c.fisher"};
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
      for (std::size_t i = 0; i < 5; ++i) {
        EXPECT_EQ(actual[i].refreshed, expected[i].refreshed) << stop;
        EXPECT_EQ(actual[i].rebuilt, expected[i].rebuilt) << stop;
      }
      EXPECT_EQ(resumed.entry(2).exponent, whole.entry(2).exponent);
    }
}

}  // namespace
}  // namespace dkfac::testing
