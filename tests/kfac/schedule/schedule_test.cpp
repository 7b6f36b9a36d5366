#include "dkfac/kfac/schedule.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"

#include "support/not_finite.h"

namespace dkfac::kfac {
namespace {

// Values below come out of a handful of roundings.
constexpr double kTolerance = 8 * std::numeric_limits<double>::epsilon();

TEST(DampingWarmup, FollowsTheRecursionAndEndsAtTheTarget) {
  for (const auto& [initial, target] : {std::pair{0.1, 1e-3}, {1e-3, 0.1}}) {
    const DampingWarmup damping{.initial = initial, .target = target, .steps = 10};
    const double a = 2 * 2 / 10.0;  // two powers of ten apart
    double lambda = initial;
    for (int step = 0; step < 10; ++step) {
      // 10 steps, each rounded relative to the larger end.
      EXPECT_NEAR(damping.at(step), lambda, 10 * 0.1 * kTolerance) << step;
      lambda = (1 - a) * lambda + a * target;
    }
    EXPECT_EQ(damping.at(10), target);
    EXPECT_EQ(damping.at(1000), target);
    EXPECT_EQ(damping.at(-5), initial);
  }
}

TEST(DampingWarmup, NeverPassesTheTarget) {
  // a would be 4 over 3 steps.
  const DampingWarmup damping{.initial = 1, .target = 1e-6, .steps = 3};
  EXPECT_EQ(damping.at(0), 1);
  EXPECT_EQ(damping.at(1), 1e-6);
  EXPECT_EQ((DampingWarmup{.initial = 5, .target = 2, .steps = 0}.at(0)), 2);
}

TEST(DampingWarmup, RefusesWrongValues) {
  EXPECT_NO_THROW((DampingWarmup{.initial = 1, .target = 1, .steps = 0}.validate()));
  EXPECT_THROW((DampingWarmup{.initial = 0, .target = 1}.validate()), InvalidArgument);
  EXPECT_THROW((DampingWarmup{.initial = 1, .target = kInf}.validate()), InvalidArgument);
  EXPECT_THROW((DampingWarmup{.initial = 1, .target = 1, .steps = -1}.validate()), InvalidArgument);
}

TEST(IntervalRamp, IsARoundedLine) {
  const IntervalRamp ramp{.first = 1, .last = 11, .steps = 4};
  EXPECT_EQ(ramp.at(-1), 1);
  EXPECT_EQ(ramp.at(0), 1);
  EXPECT_EQ(ramp.at(1), 4);  // 3.5
  EXPECT_EQ(ramp.at(2), 6);
  EXPECT_EQ(ramp.at(3), 9);  // 8.5
  EXPECT_EQ(ramp.at(4), 11);
  EXPECT_EQ(ramp.at(99), 11);
  EXPECT_EQ((IntervalRamp{.first = 20, .last = 5, .steps = 0}.at(0)), 5);
}

TEST(IntervalRamp, RefusesWrongValues) {
  EXPECT_NO_THROW(IntervalRamp{}.validate());
  EXPECT_THROW((IntervalRamp{.first = 0}.validate()), InvalidArgument);
  EXPECT_THROW((IntervalRamp{.last = -1}.validate()), InvalidArgument);
  EXPECT_THROW((IntervalRamp{.steps = -1}.validate()), InvalidArgument);
}

}  // namespace
}  // namespace dkfac::kfac
