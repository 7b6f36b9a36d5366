#include "kfac/shared/length_rule.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

namespace dkfac::testing::length_rule {
namespace {

using kfac::length_factors;
using kfac::StepLength;

constexpr double kInfinite = std::numeric_limits<double>::infinity();

double product(const std::vector<double>& x, const std::vector<double>& y) {
  double sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) sum += x[i] * y[i];
  return sum;
}

TEST(LengthFactors, AreTheFormulas) {
  const kfac::LengthProducts p{.vv = 4, .uu = 16, .uv = 2};  // Cosine 0.25, of |V|/|U| = 0.5.
  EXPECT_DOUBLE_EQ(length_factors(StepLength::projection, p).direction, 0.125);
  EXPECT_EQ(length_factors(StepLength::projection, p).gradient, 0);
  const kfac::LengthFactors near =
      length_factors(StepLength::gradient, {.vv = 4, .uu = 16, .uv = 8 * 0.64});
  EXPECT_DOUBLE_EQ(near.direction, 0.5 / 0.8);
  EXPECT_EQ(near.gradient, 0);
}

TEST(LengthFactors, TurnADirectionTowardsTheGradientUpToTheLeastCosine) {
  for (const double angle : {0.2, 1.0, 1.26, 1.27, 1.4, 1.57}) {
    // V = (3, 0), U = 5 (cos, sin): the step by its two components.
    const double cosine = std::cos(angle), sine = std::sin(angle);
    const kfac::LengthFactors step =
        length_factors(StepLength::gradient, {.vv = 9, .uu = 25, .uv = 15 * cosine});
    const double along = 5 * step.direction * cosine + 3 * step.gradient;
    const double across = 5 * step.direction * sine, length = std::hypot(along, across);
    const double kept = std::max(cosine, kfac::kLeastCosine);
    EXPECT_NEAR(along / length, kept, 1e-13) << angle;
    EXPECT_NEAR(length, 3 / std::sqrt(kept), 1e-12) << angle;
    EXPECT_GT(across, 0) << angle;
  }
}

TEST(LengthFactors, LeaveTheGradientWhereADirectionHasNoUsableLength) {
  for (const StepLength rule : {StepLength::gradient, StepLength::projection})
    for (const kfac::LengthProducts p : {kfac::LengthProducts{.vv = 1, .uu = 0, .uv = 0},
                                         {.vv = 1, .uu = kInfinite, .uv = 1},
                                         {.vv = 1, .uu = std::nan(""), .uv = 1},
                                         {.vv = std::nan(""), .uu = 1, .uv = std::nan("")},
                                         {.vv = 1, .uu = 1, .uv = -1},
                                         {.vv = 0, .uu = 0, .uv = 0}}) {
      EXPECT_EQ(length_factors(rule, p).direction, 0);
      EXPECT_EQ(length_factors(rule, p).gradient, 1);
    }
}

TEST(LengthExponent, IsThatOfAProjectionAtFirstAndWhileGradientsOpposeSteps) {
  EXPECT_DOUBLE_EQ(kfac::length_exponent(1, 0), 1.5 * 0.9 - 0.5);
  EXPECT_DOUBLE_EQ(kfac::length_exponent(10, 0), -0.5);
  EXPECT_DOUBLE_EQ(kfac::length_exponent(1e6, 0.9), -0.5);
  EXPECT_DOUBLE_EQ(kfac::length_exponent(1e6, -0.025), 1.5 * 0.5 - 0.5);
  EXPECT_DOUBLE_EQ(kfac::length_exponent(1e6, -0.9), 1);
  EXPECT_DOUBLE_EQ(kfac::length_exponent(8, -0.025), 1.5 * 0.5 - 0.5);  // The larger one counts.
  const kfac::LengthProducts p{.vv = 4, .uu = 16, .uv = 8 * 0.64};
  EXPECT_DOUBLE_EQ(length_factors(StepLength::gradient, p, 0.3, 1).direction,
                   length_factors(StepLength::projection, p).direction);
}

TEST(LengthExponent, FollowsTheMeanCosineOfGradientsAndTheStepsBeforeThem) {
  double lengths[kfac::kLengths] = {};
  const double opposed[] = {4, -1, 0.25}, across[] = {9, 0, 1};
  kfac::enter_cosine(opposed, lengths);
  EXPECT_DOUBLE_EQ(lengths[kfac::kAlong], -0.1);
  kfac::enter_cosine(across, lengths);
  EXPECT_DOUBLE_EQ(lengths[kfac::kAlong], -0.09);
  for (const double none : {0., kInfinite, std::nan("")}) {
    const double gradient[] = {none, none, 1}, step[] = {1, none, none};
    kfac::enter_cosine(gradient, lengths);
    kfac::enter_cosine(step, lengths);
  }
  EXPECT_DOUBLE_EQ(lengths[kfac::kAlong], -0.09);
}

/// The largest loss |w|^2/2 from w = 1 on, as a multiple of the first, over steps of a rate that
/// the gradient w bears, 1.8 of 2, along U = D w with D from 1 to 64. steps: those already taken.
double largest_loss(double steps) {
  constexpr int kWidth = 16;
  std::vector<double> w(kWidth, 1), u(kWidth), last(kWidth, 0);
  double lengths[kfac::kLengths] = {}, largest = 0, factors[2];
  lengths[kfac::kSteps] = steps;
  lengths[kfac::kMeanLength] = steps > 0 ? std::sqrt(product(w, w)) : 0;
  for (int step = 0; step < 50; ++step) {
    for (std::size_t i = 0; i < w.size(); ++i)
      u[i] = std::pow(64, static_cast<double>(i) / (kWidth - 1)) * w[i];
    const double products[6] = {product(w, w), product(u, u), product(u, w)};
    const double before[3] = {product(w, w), product(w, last), product(last, last)};
    kfac::store_length_factors(StepLength::gradient, products, before, lengths, factors);
    for (std::size_t i = 0; i < w.size(); ++i) {
      last[i] = factors[0] * u[i] + factors[1] * w[i];
      w[i] -= 1.8 * last[i];
    }
    largest = std::max(largest, product(w, w) / kWidth);
  }
  EXPECT_LT(product(w, w), 0.1 * kWidth);
  return largest;
}

TEST(LengthExponent, BearsARateThatTheGradientBearsInTheFirstSteps) {
  EXPECT_LT(largest_loss(0), 1.1);
  EXPECT_GT(largest_loss(1000), 2);  // Later steps are longer.
}

TEST(LengthBound, LetsALengthGrowByAFractionOfTheMean) {
  double lengths[kfac::kLengths] = {};
  EXPECT_EQ(kfac::bound_length(4, lengths), 1);  // The first is free.
  EXPECT_EQ(kfac::bound_length(2, lengths), 1);
  EXPECT_DOUBLE_EQ(lengths[kfac::kMeanLength], 3);
  EXPECT_DOUBLE_EQ(kfac::bound_length(42, lengths), 0.1);  // 1.4 * 3 of 42
  EXPECT_DOUBLE_EQ(lengths[kfac::kMeanLength], 3.4);       // (4 + 2 + 4.2) / 3
  for (int i = 0; i < 100; ++i) EXPECT_EQ(kfac::bound_length(3.4, lengths), 1);
  const double mean = lengths[kfac::kMeanLength];
  EXPECT_DOUBLE_EQ(kfac::bound_length(1e6, lengths), 1.4 * mean / 1e6);
  EXPECT_DOUBLE_EQ(lengths[kfac::kMeanLength], (1 + 0.4 * kfac::kLengthWeight) * mean);
}

/// Returns whether the bound cuts one of 100 lengths that grow by this share a step after 100 equal
/// ones, while gradients have this mean cosine to the steps before them.
bool cuts_growth(double share, double along) {
  double lengths[kfac::kLengths] = {};
  for (int i = 0; i < 100; ++i) (void)kfac::bound_length(1, lengths);
  lengths[kfac::kAlong] = along;
  double length = 1, least = 1;
  for (int i = 0; i < 100; ++i)
    least = std::min(least, kfac::bound_length(length *= 1 + share, lengths));
  return least < 1;
}

TEST(LengthBound, FollowsAGrowthThatAgreesWithTheStepsBefore) {
  // With a weight of w, lengths that grow by s a step for ever tend to 1 + s/w times their mean.
  for (const double along : {-0.5, 0., 0.01, 0.1, 0.5, 1.}) {
    const double weight = kfac::kLengthWeight + kfac::kAgreement * std::max(0., along);
    const double share = (kfac::kLengthBound - 1) * weight;
    EXPECT_FALSE(cuts_growth(0.99 * share, along)) << along;
    EXPECT_TRUE(cuts_growth(1.2 * share, along)) << along;
  }
}

TEST(LengthBound, TurnsStepsTowardsTheGradientWhileItCutsThem) {
  double lengths[kfac::kLengths] = {};
  double factors[2];
  const auto cosine = [&](double length) {  // Of the step for V = (length, 0), U = (0.1, 1).
    const double products[2][3] = {{length * length, 1.01, 0.1 * length}, {}}, before[3] = {};
    kfac::store_length_factors(StepLength::gradient, products[0], before, lengths, factors);
    const double along = 0.1 * factors[0] + length * factors[1];
    return along / std::hypot(along, factors[0]);
  };
  const auto kept = [](double taken) {
    return kfac::kLeastCosine + (1 - kfac::kLeastCosine) * taken;
  };
  for (int i = 0; i < 20; ++i) EXPECT_NEAR(cosine(1), kept(0), 1e-14);  // A steady gradient.
  // One spike of 2.8, of which the bound leaves half: a tenth of what it takes, and forgotten.
  EXPECT_NEAR(cosine(2.8), kept(0.05), 1e-13);
  for (int i = 0; i < 60; ++i) (void)cosine(1);
  EXPECT_NEAR(cosine(1), kept(0), 1e-3);
  // A rise that lasts, of 5 % a step: the mean follows at 1.2 % at most.
  double length = 1, last = kept(0);
  for (int i = 0; i < 60; ++i) last = cosine(length *= 1.05);
  EXPECT_GT(last, 0.7);
  EXPECT_LT(last, 1);
}

TEST(LengthOfGradual, TurnsFirstStepsToGradientsThatAgreeWithThoseBefore) {
  const auto turn = [](StepLength rule, double steps, double along, double taken = 0) {
    double lengths[kfac::kLengths] = {};
    lengths[kfac::kSteps] = steps, lengths[kfac::kAlong] = along, lengths[kfac::kTaken] = taken;
    return kfac::turn_to_gradient(rule, lengths);
  };
  const StepLength rule = StepLength::gradual;
  EXPECT_DOUBLE_EQ(turn(rule, 15, 0.02), 0.75 * 0.4);
  EXPECT_DOUBLE_EQ(turn(rule, 15, 0.5), 0.75);
  EXPECT_DOUBLE_EQ(turn(rule, 15, 0.5, 0.9), 0.9);  // The larger one counts.
  for (const double steps : {60., 61., 1e6}) EXPECT_EQ(turn(rule, steps, 0.5), 0) << steps;
  EXPECT_EQ(turn(rule, 75, -0.5), 0);  // Of two negative factors.
  for (const double along : {0., -0.5}) EXPECT_EQ(turn(rule, 15, along), 0) << along;
  EXPECT_EQ(turn(rule, 15, -0.5, 0.1), 0.1);
  EXPECT_EQ(turn(StepLength::gradient, 15, 0.5), 0);
}

TEST(LengthOfGradual, LeavesTheGradientInSixtySteps) {
  const auto cosines = [](StepLength rule, double sign) {  // Of steps for V = (1, 0), U = (0.1, 1).
    double lengths[kfac::kLengths] = {}, factors[2];
    std::vector<double> all;
    for (int step = 1; step <= 70; ++step) {
      const double products[6] = {1, 1.01, 0.1}, before[3] = {1, sign, 1};
      kfac::store_length_factors(rule, products, before, lengths, factors);
      const double along = 0.1 * factors[0] + factors[1];
      all.push_back(along / std::hypot(along, factors[0]));
    }
    return all;
  };
  const std::vector<double> agreed = cosines(StepLength::gradual, 1);
  for (std::size_t i = 0; i < agreed.size(); ++i) {
    const double step = static_cast<double>(i) + 1, along = 1 - std::pow(0.9, step);
    const double turn = std::max(0., 1 - step / 60) * std::min(1., 20 * along);
    EXPECT_NEAR(agreed[i], 0.3 + 0.7 * turn, 1e-13) << step;
  }
  const std::vector<double> opposed = cosines(StepLength::gradual, -1),
                            without = cosines(StepLength::gradient, 1);
  for (std::size_t i = 0; i < agreed.size(); ++i) {
    EXPECT_NEAR(opposed[i], 0.3, 1e-14);
    EXPECT_NEAR(without[i], 0.3, 1e-14);
  }
}

TEST(LengthBound, LeavesOutALengthThatIsNone) {
  double lengths[kfac::kLengths] = {};
  for (const double length : {0., kInfinite, std::nan("")})
    EXPECT_EQ(kfac::bound_length(length, lengths), 1);
  EXPECT_EQ(lengths[kfac::kSteps], 0);
  EXPECT_EQ(lengths[kfac::kTaken], 0);
  EXPECT_EQ(kfac::bound_length(1e-3, lengths), 1);  // Not bounded by the zero before it.
  EXPECT_EQ(lengths[kfac::kMeanLength], 1e-3);
}

}  // namespace
}  // namespace dkfac::testing::length_rule
