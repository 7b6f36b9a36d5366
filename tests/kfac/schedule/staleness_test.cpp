#include "kfac/schedule/staleness.h"

#include <array>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"
#include "dkfac/core/ops.h"
#include "dkfac/core/random.h"

#include "support/both_backends.h"
#include "support/near.h"

namespace dkfac::testing {
namespace {

using kfac::drift, kfac::Intervals, kfac::kMaxInterval, kfac::next_intervals;

TEST(NextIntervals, HalveKeepOrAdd) {
  EXPECT_EQ(next_intervals({8, 5}, true, true, 0), (Intervals{13, 8}));
  EXPECT_EQ(next_intervals({8, 5}, true, false, 0), (Intervals{8, 8}));
  EXPECT_EQ(next_intervals({9, 5}, false, true, 0), (Intervals{4, 9}));
  EXPECT_EQ(next_intervals({9, 5}, false, false, 0), (Intervals{4, 9}));
  EXPECT_EQ(next_intervals({1, 1}, false, false, 0), (Intervals{1, 1}));
}

TEST(NextIntervals, AreBounded) {
  EXPECT_EQ(next_intervals({8, 5}, true, true, 10), (Intervals{10, 8}));
  EXPECT_EQ(next_intervals({8, 5}, true, false, 3), (Intervals{3, 8}));  // a bound that came later
  EXPECT_EQ(next_intervals({kMaxInterval, kMaxInterval}, true, true, 0).last, kMaxInterval);
  Intervals growing;
  for (int i = 0; i < 100; ++i) growing = next_intervals(growing, true, true, 0);
  EXPECT_EQ(growing, (Intervals{kMaxInterval, kMaxInterval}));
}

TEST(NextIntervals, GrowAsFibonacci) {
  Intervals intervals;
  std::vector<std::int64_t> sequence;
  for (int i = 0; i < 8; ++i) {
    intervals = next_intervals(intervals, true, true, 0);
    sequence.push_back(intervals.last);
  }
  EXPECT_EQ(sequence, (std::vector<std::int64_t>{2, 3, 5, 8, 13, 21, 34, 55}));
}

/// Full symmetric matrices of packed ones: |x - y|_F / |y|_F by plain loops.
double drift_of_squares(const std::vector<double>& x, const std::vector<double>& y,
                        std::int64_t dim) {
  double difference = 0, old = 0;
  const auto size = static_cast<std::size_t>(ops::packed_size(dim));
  for (std::size_t first = 0; first < x.size(); first += size)
    for (std::int64_t r = 0; r < dim; ++r)
      for (std::int64_t c = 0; c < dim; ++c) {
        const std::int64_t hi = std::max(r, c), lo = std::min(r, c);
        const std::size_t at = first + static_cast<std::size_t>(hi * (hi + 1) / 2 + lo);
        difference += (x[at] - y[at]) * (x[at] - y[at]);
        old += y[at] * y[at];
      }
  return std::sqrt(difference / old);
}

class Drift : public BothBackends {};
DKFAC_BOTH_BACKENDS(Drift);

TEST_P(Drift, IsThatOfTheFullMatrix) {
  Random random(3);
  for (const std::int64_t dim : {1, 2, 7, 20})
    for (const std::int64_t groups : {1, 3}) {
      std::vector<double> x, y;
      for (std::int64_t i = 0; i < groups * ops::packed_size(dim); ++i) {
        y.push_back(random.normal());
        x.push_back(y.back() + 0.1 * random.normal());
      }
      const Shape shape{groups * ops::packed_size(dim)};
      const double expected = drift_of_squares(x, y, dim);
      // Sums of dim^2 * groups terms, off by eps each.
      const double n = static_cast<double>(dim * dim * groups);
      EXPECT_NEAR(drift({.dim = dim}, view_of(x.data(), shape), view_of(y.data(), shape)), expected,
                  8 * n * eps<double> * expected);
      if (dim == 1) continue;
      // The control: the bare triangle is another number.
      EXPECT_GT(std::abs(drift({}, view_of(x.data(), {groups, ops::packed_size(dim)}),
                               view_of(y.data(), {groups, ops::packed_size(dim)})) -
                         expected),
                1e-6);
    }
}

TEST_P(Drift, CountsTheOffDiagonalRowOfUnitWiseBlocksTwice) {
  const std::vector<double> y{1, 2, 3, 4, 5, 6}, x{1, 2, 4, 4, 5, 6};  // F_gb of channel 0: 3 -> 4
  const auto view = [](const std::vector<double>& v) { return view_of(v.data(), {3, 2}); };
  const double old = 1 + 4 + 2 * 9 + 2 * 16 + 25 + 36;
  EXPECT_NEAR(drift({.dim = 0, .cross = true}, view(x), view(y)), std::sqrt(2 / old),
              8 * eps<double>);
  EXPECT_NEAR(drift({}, view(x), view(y)), std::sqrt(1 / (old - 25)), 8 * eps<double>);
}

TEST_P(Drift, IsUnknownBesideZeroAndBesideWhatIsNotFinite) {
  const std::vector<float> zero(3, 0.0F), one(3, 1.0F),
      bad(3, std::numeric_limits<float>::infinity());
  const auto view = [](const std::vector<float>& v) { return view_of(v.data(), {3}); };
  EXPECT_EQ(drift({.dim = 2}, view(one), view(zero)), -1);
  EXPECT_EQ(drift({.dim = 2}, view(bad), view(one)), -1);
  EXPECT_EQ(drift({.dim = 2}, view(one), view(bad)), -1);
  EXPECT_EQ(drift({.dim = 2}, view(zero), view(one)), 1);
  EXPECT_EQ(drift({.dim = 2}, view(one), view(one)), 0);
}

TEST_P(Drift, RefusesValuesThatDoNotFit) {
  const std::vector<float> x(3);
  const std::vector<double> y(3);
  EXPECT_THROW((void)drift({.dim = 2}, view_of(x.data(), {3}), view_of(y.data(), {3})),
               InvalidArgument);
  EXPECT_THROW((void)drift({.dim = 2}, view_of(x.data(), {3}), view_of(x.data(), {1})),
               InvalidArgument);
}

class History : public BothBackends {
 protected:
  /// A refresh with the value x.
  kfac::StatisticHistory::Similarity push(kfac::StatisticHistory& history, ConstTensorView x,
                                          double alpha) {
    std::array<double, 2> drifts{};
    history.compare(ctx, {.dim = 1}, x, alpha, view_of(drifts.data(), {2}));
    history.keep(ctx, x);
    return kfac::StatisticHistory::similarity(drifts[0], drifts[1], alpha);
  }
};
DKFAC_BOTH_BACKENDS(History);

TEST_P(History, DrivesTheIntervalsOfASeriesWorkedOutByHand) {
  kfac::StatisticHistory history(ctx, {1}, DType::f64);
  struct Step {
    double x;
    std::int64_t interval;
  };
  // alpha 0.25. After each value: is it similar to the last, and to the one before?
  const std::vector<Step> series{
      {1, 1},      // nothing to compare with: 1/2 is at least 1
      {1, 1},      // similar, but there is no X_-2: keeps 1
      {1, 2},      // similar to both: 1 + 1
      {1.125, 3},  // 0.125, 0.125: 2 + 1
      {1.25, 3},   // 0.11 to the last; 0.25 to 1 is not less than alpha: keeps 3
      {1.25, 6},   // 0, 0.11: 3 + 3
      {8, 3},      // another value: halves
      {8, 3},      // similar to the last alone: keeps
      {8, 6},      // 3 + 3
      {0, 3},      // a drift of 1: halves
      {0, 1},      // beside a zero nothing is similar: halves 3
      {8, 1},      // nor this
      {8, 1},      // similar, X_-2 is zero: keeps
      {8, 2},      // 1 + 1
  };
  Intervals intervals;
  for (std::size_t i = 0; i < series.size(); ++i) {
    const double x = series[i].x;
    const auto similarity = push(history, view_of(&x, {1}), 0.25);
    intervals = next_intervals(intervals, similarity.to_last, similarity.to_before, 0);
    EXPECT_EQ(intervals.last, series[i].interval) << i;
    const double before = i == 0 ? 0 : series[i - 1].x;
    EXPECT_EQ(similarity.drift, before == 0 ? -1 : std::abs(x - before) / before) << i;
  }
}

TEST_P(History, FindsNothingSimilarWithAlphaZero) {
  kfac::StatisticHistory history(ctx, {1}, DType::f32);
  for (int i = 0; i < 4; ++i) {
    const float x = 1;
    const auto similarity = push(history, view_of(&x, {1}), 0);
    EXPECT_FALSE(similarity.to_last || similarity.to_before);
  }
}

}  // namespace
}  // namespace dkfac::testing
