#include "kfac/schedule/step_meter.h"

#include <sys/resource.h>

#include <gtest/gtest.h>

namespace dkfac::testing {
namespace {

using kfac::StepPart, kfac::StepMeter;

double metered_time = 0;

class Meter {
 public:
  explicit Meter(bool asynchronous = false) {
    metered_time = 0;
    kfac::replace_step_clock([] { return metered_time; });
    meter = kfac::make_step_meter(asynchronous);
    kfac::replace_step_clock(nullptr);
  }
  void spend(StepPart part, double seconds) {
    const kfac::Metered metered(meter, part);
    metered_time += seconds;
  }
  /// A step in which directions contain the refreshes, as in the library.
  void step(double passes, double apply, double statistics, double inverses, double part = 1) {
    metered_time += passes;
    {
      const kfac::Metered metered(meter, StepPart::apply);
      metered_time += apply / 2;
      spend(StepPart::statistics, statistics);
      spend(StepPart::inverses, inverses);
      metered_time += apply / 2;
    }
    end_metered_step(meter, {statistics > 0, inverses > 0 ? part : 0});
  }
  StepMeter meter;
};

TEST(StepMeter, TakesMediansOfEachPart) {
  Meter m;
  for (int i = 0; i < 20; ++i) m.step(100, 100, 100, 0);  // The start.
  for (int i = 0; i < 5; ++i) {
    EXPECT_FALSE(is_measured(m.meter, 2, true)) << i;
    m.step(i == 3 ? 1000 : 8, 1, 0, 0);  // Once with an evaluation.
    m.step(8, 1, 3, 0);
    m.step(8, 1, 3, i == 2 ? 500 : 16);
    metered_time += 77;
    drop_metered_step(m.meter);  // A rejected step.
  }
  ASSERT_TRUE(is_measured(m.meter, 2, true));
  const kfac::StepCosts costs = costs_of(m.meter);
  EXPECT_EQ(costs.passes, 8);
  EXPECT_EQ(costs.apply, 1);
  EXPECT_EQ(costs.statistics, 3);
  EXPECT_EQ(costs.inverses, 16);
  restart(m.meter);
  EXPECT_FALSE(is_measured(m.meter, 2, true));
  for (int i = 0; i < 5; ++i) m.step(10, 1, 3, 16);
  ASSERT_TRUE(is_measured(m.meter, 1, true));
  EXPECT_EQ(costs_of(m.meter).statistics, 3 + 2) << "by the steps without, of which there are none";
}

TEST(StepMeter, DoesNotWaitForStepsThatThereAreNot) {
  Meter m;
  for (int i = 0; i < 25; ++i) m.step(8, 1, 3, 0);
  EXPECT_FALSE(is_measured(m.meter, 2, false)) << "no step without statistics yet";
  EXPECT_TRUE(is_measured(m.meter, 1, false)) << "and there will be none";
  EXPECT_FALSE(is_measured(m.meter, 1, true)) << "no step with inverses yet";
}

TEST(StepMeter, CountsEarlyRebuildsButForTheFirst) {
  Meter m;
  m.step(8, 1, 3, 1000);
  for (int i = 0; i < 5; ++i) m.step(8, 1, 3, 16);
  for (int i = 0; i < 14; ++i) m.step(100, 100, 100, 0);
  for (int i = 0; i < 5; ++i) m.step(8, 1, 0, 0), m.step(8, 1, 3, 0);
  ASSERT_TRUE(is_measured(m.meter, 2, true));
  EXPECT_EQ(costs_of(m.meter).inverses, 16);
}

TEST(StepMeter, TakesNoStatisticsFromStepsOfTheStart) {
  for (const bool device : {false, true}) {
    Meter m(device);
    for (int i = 0; i < 10; ++i) m.step(20, 1, 30, i % 2 == 1 ? 16 : 0);  // All is new, and slow.
    for (int i = 0; i < 10; ++i) m.step(8, 1, 0, 0);
    for (int i = 0; i < 4; ++i) m.step(8, 1, 0, 0), m.step(8, 1, 3, 0);
    m.step(8, 1, 0, 0);
    EXPECT_FALSE(is_measured(m.meter, 10, true)) << "those of the start do not count";
    m.step(8, 1, 3, 16);
    ASSERT_TRUE(is_measured(m.meter, 10, true));
    EXPECT_EQ(costs_of(m.meter).statistics, 3) << "nor inverses beside them on a device";
  }
}

TEST(StepMeter, CountsToStatisticsWhatHooksAndExchangeTakeLonger) {
  Meter m;
  for (int i = 0; i < 20; ++i) m.step(1, 1, 1, 0);
  for (int i = 0; i < 5; ++i) m.step(8, 1, 0, 0), m.step(10, 1.5, 3, 0);
  const kfac::StepCosts costs = costs_of(m.meter);
  EXPECT_EQ(costs.statistics, 3 + 2 + 0.5);
  EXPECT_EQ(costs.passes, 8);
  EXPECT_EQ(costs.apply, 1);
}

TEST(StepMeter, CountsToApplyingWhatTheCallerDoesInThePasses) {
  Meter m;
  for (int i = 0; i < 20; ++i) m.step(1, 1, 1, 0);
  for (int i = 0; i < 5; ++i) {
    count_own(m.meter, 1.5);
    count_own(m.meter, 0.5);
    m.step(8, 1, 0, 0);
    count_own(m.meter, 100);
    drop_metered_step(m.meter);  // A rejected step.
    count_own(m.meter, 3);
    m.step(10, 1, 3, 16);
  }
  const kfac::StepCosts costs = costs_of(m.meter);
  EXPECT_EQ(costs.passes, 8 - 2);
  EXPECT_EQ(costs.apply, 1 + 2);
  EXPECT_EQ(costs.statistics, 3 + 2) << "as without: what these steps take longer";
  EXPECT_EQ(costs.inverses, 16);
}

TEST(StepMeter, LeavesTheKfacOfAnotherModelOutOfThePasses) {
  Meter m, other;
  for (int i = 0; i < 30; ++i) {
    other.step(4, 100, i % 2 == 0 ? 50 : 0, 0);
    count_own(other.meter, 1.5);
    metered_time += 1.5;  // In the passes of both, and of neither.
    m.step(4, 1, i % 2 == 0 ? 0 : 3, 16);
  }
  const kfac::StepCosts costs = costs_of(m.meter), others = costs_of(other.meter);
  EXPECT_EQ(costs.passes, 8);
  EXPECT_EQ(costs.apply, 1);
  EXPECT_EQ(costs.statistics, 3);
  EXPECT_EQ(others.passes, 8);
  EXPECT_EQ(others.apply, 101.5);
  EXPECT_EQ(others.statistics, 50);

  Meter device(true), beside;
  for (int i = 0; i < 26; ++i) beside.step(4, 1, 0, 0), device.step(4, 1, 0, 0);
  EXPECT_EQ(costs_of(device.meter).passes, 10) << "whose work is done at another time";
}

TEST(StepMeter, ScalesARebuildOfAPartToThatOfAll) {
  Meter m;
  for (int i = 0; i < 20; ++i) m.step(1, 1, 1, 0);
  for (int i = 0; i < 5; ++i) m.step(8, 1, 0, 4, 0.25);
  EXPECT_EQ(costs_of(m.meter).inverses, 16);
}

TEST(StepMeter, TakesDifferencesOnADevice) {
  Meter m(true);
  const auto step = [&m](double seconds, bool statistics, double inverses) {
    const kfac::Metered metered(m.meter, StepPart::statistics);  // Enqueues, while time passes.
    metered_time += seconds;
    end_metered_step(m.meter, {statistics, inverses}, 1);
  };
  for (int i = 0; i < 20; ++i) step(100, true, 0);
  for (int i = 0; i < 5; ++i) step(9, false, 0), step(12, true, 0), step(25, false, 1);
  const kfac::StepCosts apart = costs_of(m.meter);
  EXPECT_EQ(apart.passes, 8);
  EXPECT_EQ(apart.apply, 1);
  EXPECT_EQ(apart.statistics, 3);
  EXPECT_EQ(apart.inverses, 16);
  restart(m.meter);
  for (int i = 0; i < 5; ++i) step(9, false, 0), step(12, true, 0), step(28, true, 1);
  EXPECT_EQ(costs_of(m.meter).inverses, 16) << "in steps with statistics";
}

TEST(StepMeter, HasAFineClockUnderALimitOfProcessorTime) {
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_CPU, &limit), 0);
  if (limit.rlim_cur == RLIM_INFINITY) {
    limit.rlim_cur = 1'000'000;  // Seconds. CLOCK_PROCESS_CPUTIME_ID has ticks of 1 to 10 ms then.
    ASSERT_EQ(setrlimit(RLIMIT_CPU, &limit), 0);
  }
  const kfac::StepClock clock = kfac::make_step_meter(false).clock;
  const double start = clock();
  int ticks = 0;
  for (double last = start, now = start; now < start + 0.01; last = now, now = clock())
    if (now > last) ++ticks;
  EXPECT_GT(ticks, 20);
}

}  // namespace
}  // namespace dkfac::testing
