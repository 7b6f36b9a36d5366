#include "dkfac/optim/lr_schedule.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"

#include "support/not_finite.h"

namespace dkfac::optim {
namespace {

// Values below come out of a handful of roundings.
constexpr double kTolerance = 8 * std::numeric_limits<double>::epsilon();

TEST(PolynomialLr, IsFlatThenFallsToZeroAtTheEnd) {
  const PolynomialLr lr{.lr0 = 8, .start = 2, .end = 10, .power = 2};
  EXPECT_EQ(lr.at(-1), 8);
  EXPECT_EQ(lr.at(0), 8);
  EXPECT_EQ(lr.at(2), 8);
  EXPECT_NEAR(lr.at(4), 8 * 0.75 * 0.75, 8 * kTolerance);
  EXPECT_NEAR(lr.at(6), 2, 2 * kTolerance);
  EXPECT_NEAR(lr.at(9.5), 8.0 / 256, kTolerance);
  EXPECT_EQ(lr.at(10), 0);
  EXPECT_EQ(lr.at(1000), 0);  // not the NaN of a negative base
}

TEST(PolynomialLr, TakesFractionalPowers) {
  const PolynomialLr lr{.lr0 = 1, .start = 0, .end = 4, .power = 0.5};
  EXPECT_NEAR(lr.at(3), 0.5, kTolerance);
}

TEST(PolynomialLr, FallsToItsLastRate) {
  const PolynomialLr lr{.lr0 = 8, .start = 2, .end = 10, .power = 2, .last = 4};
  EXPECT_EQ(lr.at(2), 8);
  EXPECT_NEAR(lr.at(4), 4 + 4 * 0.75 * 0.75, 8 * kTolerance);
  EXPECT_NEAR(lr.at(6), 5, 8 * kTolerance);
  EXPECT_EQ(lr.at(10), 4);
  EXPECT_EQ(lr.at(1000), 4);
}

TEST(PolynomialLr, RefusesWrongValues) {
  EXPECT_NO_THROW((PolynomialLr{.lr0 = 0, .start = 0, .end = 1, .power = 1}.validate()));
  EXPECT_THROW((PolynomialLr{.lr0 = -1, .start = 0, .end = 1}.validate()), InvalidArgument);
  EXPECT_THROW((PolynomialLr{.lr0 = 1, .start = -1, .end = 1}.validate()), InvalidArgument);
  EXPECT_THROW((PolynomialLr{.lr0 = 1, .start = 1, .end = 1}.validate()), InvalidArgument);
  EXPECT_THROW((PolynomialLr{.lr0 = 1, .start = 0, .end = kInf}.validate()), InvalidArgument);
  EXPECT_THROW((PolynomialLr{.lr0 = 1, .start = 0, .end = 1, .power = 0}.validate()),
               InvalidArgument);
  EXPECT_THROW((PolynomialLr{.lr0 = std::nan(""), .start = 0, .end = 1}.validate()),
               InvalidArgument);
  for (const double last : {-1.0, kNan, kInf})
    EXPECT_THROW((PolynomialLr{.lr0 = 1, .last = last}.validate()), InvalidArgument);
}

TEST(PiecewiseLinearLr, JoinsItsKnotsAndIsConstantOutside) {
  const PiecewiseLinearLr lr{{{0, 0}, {5, 0.4}, {24, 0}}};
  EXPECT_EQ(lr.at(-3), 0);
  EXPECT_EQ(lr.at(0), 0);
  EXPECT_NEAR(lr.at(2.5), 0.2, kTolerance);
  EXPECT_EQ(lr.at(5), 0.4);
  EXPECT_NEAR(lr.at(14.5), 0.2, kTolerance);
  EXPECT_EQ(lr.at(24), 0);
  EXPECT_EQ(lr.at(30), 0);
  const PiecewiseLinearLr single{{{3, 0.1}}};
  EXPECT_EQ(single.at(0), 0.1);
  EXPECT_EQ(single.at(3), 0.1);
  EXPECT_EQ(single.at(9), 0.1);
}

TEST(PiecewiseLinearLr, RefusesWrongKnots) {
  EXPECT_NO_THROW((PiecewiseLinearLr{{{0, 1}, {1, 0}}}.validate()));
  EXPECT_THROW(PiecewiseLinearLr{}.validate(), InvalidArgument);
  EXPECT_THROW((PiecewiseLinearLr{{{0, 1}, {0, 2}}}.validate()), InvalidArgument);
  EXPECT_THROW((PiecewiseLinearLr{{{1, 1}, {0, 2}}}.validate()), InvalidArgument);
  EXPECT_THROW((PiecewiseLinearLr{{{0, -1}}}.validate()), InvalidArgument);
  EXPECT_THROW((PiecewiseLinearLr{{{0, 1}, {std::nan(""), 1}}}.validate()), InvalidArgument);
}

TEST(CosineLr, IsHalfACosineBetweenItsEnds) {
  const CosineLr lr{.lr0 = 8, .last = 2, .start = 1, .end = 5};
  EXPECT_EQ(lr.at(0), 8);
  EXPECT_EQ(lr.at(1), 8);
  EXPECT_NEAR(lr.at(2), 5 + 3 * std::sqrt(0.5), 8 * kTolerance);
  EXPECT_NEAR(lr.at(3), 5, 8 * kTolerance);
  EXPECT_NEAR(lr.at(4), 5 - 3 * std::sqrt(0.5), 8 * kTolerance);
  EXPECT_EQ(lr.at(5), 2);
  EXPECT_EQ(lr.at(50), 2);
  EXPECT_GT(std::abs(lr.at(2) - 6.5), 0.1);  // A line would be there.
}

TEST(CosineLr, RefusesWrongValues) {
  EXPECT_NO_THROW((CosineLr{.lr0 = 1, .last = 0, .start = 0, .end = 1}.validate()));
  EXPECT_THROW((CosineLr{.lr0 = -1}.validate()), InvalidArgument);
  EXPECT_THROW((CosineLr{.lr0 = 1, .last = std::nan("")}.validate()), InvalidArgument);
  EXPECT_THROW((CosineLr{.lr0 = 1, .start = 1, .end = 1}.validate()), InvalidArgument);
  EXPECT_THROW((CosineLr{.lr0 = 1, .end = kInf}.validate()), InvalidArgument);
}

TEST(StepLr, KeepsEachValueUntilTheNextKnot) {
  const StepLr lr{{{0, 0.1}, {30, 0.01}, {60, 0.001}}};
  EXPECT_EQ(lr.at(0), 0.1);
  EXPECT_EQ(lr.at(29.999), 0.1);
  EXPECT_EQ(lr.at(30), 0.01);
  EXPECT_EQ(lr.at(59.5), 0.01);
  EXPECT_EQ(lr.at(60), 0.001);
  EXPECT_EQ(lr.at(90), 0.001);
  EXPECT_EQ((StepLr{{{3, 0.1}}}.at(0)), 0.1);  // Before the first knot.
  EXPECT_THROW(StepLr{}.validate(), InvalidArgument);
  EXPECT_THROW((StepLr{{{1, 1}, {0, 2}}}.validate()), InvalidArgument);
}

TEST(LrSchedules, HaveNoRateWhereTheEpochIsNoNumber) {
  const double nan = std::nan("");
  EXPECT_TRUE(std::isnan(PolynomialLr{.lr0 = 1}.at(nan)));
  EXPECT_TRUE(std::isnan(PiecewiseLinearLr{{{0, 1}, {2, 0}}}.at(nan)));
  EXPECT_TRUE(std::isnan(CosineLr{.lr0 = 1}.at(nan)));
  EXPECT_TRUE(std::isnan(StepLr{{{0, 1}, {2, 0.1}}}.at(nan)));
  EXPECT_TRUE(std::isnan(warmup_factor(nan, 5)));
  // std::lerp() of libstdc++ gives one end where both have the same sign.
  EXPECT_TRUE(std::isnan(PolynomialLr{.lr0 = 1, .last = 0.1}.at(nan)));
  EXPECT_TRUE(std::isnan(PiecewiseLinearLr{{{0, 1}, {2, 0.1}}}.at(nan)));
  EXPECT_TRUE(std::isnan(CosineLr{.lr0 = 1, .last = 0.1}.at(nan)));
  EXPECT_TRUE(std::isnan(warmup_factor(nan, 5, 0.1)));
  EXPECT_TRUE(std::isnan(warmup_factor(nan, 0, 0.1)));
}

TEST(WarmupFactor, RisesFromFirstToOne) {
  EXPECT_EQ(warmup_factor(0, 5), 0);
  EXPECT_NEAR(warmup_factor(1, 5), 0.2, kTolerance);
  EXPECT_EQ(warmup_factor(5, 5), 1);
  EXPECT_EQ(warmup_factor(7, 5), 1);
  EXPECT_EQ(warmup_factor(0, 5, 0.1), 0.1);
  EXPECT_NEAR(warmup_factor(2.5, 5, 0.1), 0.55, kTolerance);
  EXPECT_EQ(warmup_factor(-1, 5, 0.1), 0.1);
  EXPECT_EQ(warmup_factor(0, 0), 1);
  EXPECT_THROW((void)warmup_factor(0, -1), InvalidArgument);
  EXPECT_THROW((void)warmup_factor(1, 5, std::nan("")), InvalidArgument);
}

}  // namespace
}  // namespace dkfac::optim
