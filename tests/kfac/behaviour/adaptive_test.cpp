#include <limits>
#include <map>
#include <set>

#include <gtest/gtest.h>

#include "support/comparison_bytes.h"
#include "support/natural_gradient.h"
#include "support/near.h"
#include "support/plain_training.h"

// Staleness::adaptive: SP-NGD algorithms 1-2 from records to inverses.
namespace dkfac::testing {
namespace {

using kfac::StatisticKind;
using Steps = std::vector<int>;

kfac::CurvatureOptions adaptive(double alpha) {
  kfac::CurvatureOptions options = natural_gradient();
  options.damping = 1e-2;
  options.dtype = DType::f64;
  options.refresh.staleness = kfac::Staleness::adaptive;
  options.refresh.similarity = alpha;
  options.statistics.new_weight = 1;
  return options;
}

/// One 1 -> 1 layer whose A and G are numbers of our choice.
struct Scripted {
  Scripted(std::shared_ptr<comm::Communicator> comm, const kfac::CurvatureOptions& options)
      : preconditioner(std::move(comm), options),
        fc(preconditioner.add_layer("fc", LinearSpec{.in = 1, .out = 1, .bias = false})) {}

  /// Every rank has one sample with the same values.
  kfac::StepReport step(double a, double g, RecordScale scale = {}) {
    const double x = std::sqrt(a), dy = std::sqrt(g);
    if (preconditioner.wants_input(fc))
      preconditioner.record_input(fc, view_of(&x, {1, 1}), Stream::cpu(), scale);
    if (preconditioner.wants_grad_output(fc))
      preconditioner.record_grad_output(fc, view_of(&dy, {1, 1}), Stream::cpu(), scale);
    gradient = 1;
    const std::vector<kfac::LayerGrad> grads{{fc, view_of(&gradient, {1, 1}), {}}};
    return preconditioner.step(grads);
  }

  kfac::Preconditioner preconditioner;
  LayerId fc;
  double gradient = 0;
};

/// A is 1, from step 20 on 4; G is always 1.
double scripted_a(int step) { return step < 20 ? 1 : 4; }

// By hand, from Delta_-1 = Delta_-2 = 1. A: 1, 1 (no X_-2 yet), 2, 3, 5, 8; in step 20 a drift of 3
// halves 8; in step 24 the last value is similar, the one before is not: 4 again; 4 + 4, 8 + 4.
const Steps kRefreshesOfA{0, 1, 2, 4, 7, 12, 20, 24, 28, 36, 48};
const Steps kRefreshesOfG{0, 1, 2, 4, 7, 12, 20, 33};

TEST(Adaptive, RefreshesAtStepsWorkedOutByHandOnEveryRank) {
  for (const int ranks : {1, 3})
    comm::run_ranks(ranks, [](auto comm) {
      Scripted layer(comm, adaptive(0.25));
      Steps a, g;
      for (int step = 0; step < 50; ++step) {
        const kfac::StepReport report = layer.step(scripted_a(step), 1);
        ASSERT_EQ(report.statistics.size(), 2U);
        std::string text;
        for (const kfac::StatisticReport& s : report.statistics) {
          if (s.refreshed) (s.kind == StatisticKind::a ? a : g).push_back(step);
          EXPECT_EQ(s.layer, 0);
          EXPECT_EQ(s.age == 0, s.refreshed);
          text += detail::concat(static_cast<int>(s.kind), ' ', s.refreshed, ' ', s.interval, ' ',
                                 s.age, ' ', s.drift, '\n');
        }
        comm::require_equal(*comm, text, "the reports");
        EXPECT_EQ(report.statistics_refreshed,
                  report.statistics[0].refreshed || report.statistics[1].refreshed);
      }
      EXPECT_EQ(a, kRefreshesOfA);
      EXPECT_EQ(g, kRefreshesOfG);
    });
}

TEST(Adaptive, ReportsIntervalAgeAndDrift) {
  Scripted layer(comm::make_self(), adaptive(0.25));
  for (int step = 0; step < 24; ++step) {
    const kfac::StatisticReport a = layer.step(scripted_a(step), 1).statistics[0];
    if (step == 0) {
      EXPECT_EQ(a.drift, -1);  // nothing to compare with
    }
    if (step == 1) {
      EXPECT_EQ(a.drift, 0);
    }
    if (step == 14) {
      EXPECT_EQ(a.age, 2);
      EXPECT_EQ(a.interval, 8);
    }
    if (step == 20) {
      EXPECT_EQ(a.interval, 4);
      EXPECT_EQ(a.drift, 3);
    }
  }
}

TEST(Adaptive, KeepsToTheBoundOfItsIntervals) {
  kfac::CurvatureOptions options = adaptive(0.25);
  options.refresh.max_interval = 4;
  Scripted layer(comm::make_self(), options);
  Steps a;
  for (int step = 0; step < 20; ++step)
    if (layer.step(1, 1).statistics[0].refreshed) a.push_back(step);
  EXPECT_EQ(a, (Steps{0, 1, 2, 4, 7, 11, 15, 19}));
}

TEST(Adaptive, CountsBytesAndOperationsThatWereSkipped) {
  comm::run_ranks(2, [](auto comm) {
    Scripted layer(comm, adaptive(0.25));
    // Each factor is one f64 of 2 samples: 2 d (d + 1) operations to build, d^3 to invert.
    constexpr double kFactor = 2 * 2 + 1;
    for (int step = 0; step < 50; ++step) {
      const kfac::StepReport report = layer.step(scripted_a(step), 1);
      int skipped = 2;
      for (const kfac::StatisticReport& s : report.statistics) skipped -= s.refreshed ? 1 : 0;
      EXPECT_EQ(report.bytes_skipped, 8U * static_cast<unsigned>(skipped)) << step;
      EXPECT_EQ(report.flops_skipped, kFactor * skipped) << step;
      EXPECT_EQ(report.flops, kFactor * (2 - skipped)) << step;
      // 42 elements of the step's flags, the direction; one number of each statistic and 8 of its
      // decisions; in the first step also whether the layer has an inverse.
      const std::uint64_t first = (step == 0 ? 8 : 0) + comparison_bytes(report, 2, 1);
      const std::uint64_t always = 8 * (report.statistics_refreshed ? 2 * 42 + 8 : 42) + 8 + first;
      EXPECT_EQ(report.bytes, always + 8U * static_cast<unsigned>(2 - skipped)) << step;
    }
  });
}

TEST(Adaptive, AZeroFactorDoesNotSetTheInverseOfTheOther) {
  Scripted layer(comm::make_self(), adaptive(0.25));
  const double root = std::sqrt(1e-2);
  double g_inverse = 0;
  Steps a;
  for (int step = 0; step < 34; ++step) {
    // Both are due in step 20; after it G in step 24, and A only in step 33.
    const kfac::StepReport report = layer.step(1, step == 20 ? 0 : 1);
    if (report.statistics[0].refreshed) a.push_back(step);
    if (report.statistics[1].refreshed) g_inverse = step == 20 ? 1 / root : 1 / (1 + root);
    EXPECT_NEAR(layer.gradient, g_inverse / (1 + root), 16 * eps<double> * g_inverse) << step;
  }
  EXPECT_EQ(a, (Steps{0, 1, 2, 4, 7, 12, 20, 33}));
}

TEST(Adaptive, RebuildsTheInverseOfWhatWasRefreshedAlone) {
  Scripted layer(comm::make_self(), adaptive(0.25));
  const double root = std::sqrt(1e-2);
  double a_damped = 0, g_damped = 0;
  for (int step = 0; step < 30; ++step) {
    const double a = scripted_a(step);
    const kfac::StepReport report = layer.step(a, 1);
    const double pi = std::sqrt(a);  // tr G = 1
    const bool a_new = report.statistics[0].refreshed, g_new = report.statistics[1].refreshed;
    if (a_new) a_damped = a + pi * root;
    if (g_new) g_damped = 1 + root / pi;
    int rebuilt = 0;
    for (const int count : report.inverses) rebuilt += count;
    EXPECT_EQ(rebuilt, (a_new ? 1 : 0) + (g_new ? 1 : 0));
    EXPECT_EQ(report.inverses_refreshed, a_new || g_new);
    // A handful of roundings.
    EXPECT_NEAR(layer.gradient, 1 / (a_damped * g_damped), 16 * eps<double>) << step;
  }
}

TEST(Adaptive, PostponesWhatAStepThatWasSkippedWouldHaveRefreshed) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  comm::run_ranks(2, [nan](auto comm) {
    Scripted layer(comm, adaptive(0.25));
    Steps a;
    int accepted = 0;
    for (const int bad : {0, 3, 12, 20, 21, 22}) {
      const auto go_to = [&](int step) {
        for (; accepted < step; ++accepted)
          if (layer.step(scripted_a(accepted), 1).statistics[0].refreshed) a.push_back(accepted);
      };
      go_to(bad);
      const bool due = layer.preconditioner.wants_input(layer.fc);
      const bool g_due = layer.preconditioner.wants_grad_output(layer.fc);
      const double x = comm->rank() == 1 ? nan : 1, dy = 1;
      if (due) layer.preconditioner.record_input(layer.fc, view_of(&x, {1, 1}));
      if (g_due) layer.preconditioner.record_grad_output(layer.fc, view_of(&dy, {1, 1}));
      double gradient = 1;
      const std::vector<kfac::LayerGrad> grads{{layer.fc, view_of(&gradient, {1, 1}), {}}};
      const kfac::StepReport report = layer.preconditioner.step(
          grads, Stream::cpu(), {.lr = 0, .flags = {.loss_nonfinite = comm->rank() == 0}});
      EXPECT_FALSE(report.updated);
      EXPECT_FALSE(report.statistics[0].refreshed);
      EXPECT_EQ(report.bytes_skipped, 0U);
      EXPECT_EQ(layer.preconditioner.wants_input(layer.fc), due);
      EXPECT_EQ(layer.preconditioner.wants_grad_output(layer.fc), g_due);
      go_to(bad + 1);
    }
    for (; accepted < 50; ++accepted)
      if (layer.step(scripted_a(accepted), 1).statistics[0].refreshed) a.push_back(accepted);
    EXPECT_EQ(a, kRefreshesOfA);
  });
}

TEST(Adaptive, ForgetsAStatisticThatWasRefused) {
  comm::run_ranks(2, [](auto comm) {
    Scripted layer(comm, adaptive(0.25));
    Steps a, g;
    for (int step = 0; step < 20; ++step) {
      // With a global batch of 1, A is the sum over the ranks: in step 7 it is infinite, while what
      // each of them adds is not.
      const kfac::StepReport report = layer.step(step == 7 ? 1e308 : 1, 1, {1, 1});
      EXPECT_EQ(report.failed_factors, step == 7 && comm->rank() == 0 ? 1 : 0) << step;
      for (const kfac::StatisticReport& s : report.statistics)
        if (s.refreshed) (s.kind == StatisticKind::a ? a : g).push_back(step);
    }
    // Similar to nothing, it halves 3 to 1. Step 8 is compared with 4 and 2: 1 + 3, then 4 + 1.
    EXPECT_EQ(a, (Steps{0, 1, 2, 4, 7, 8, 12, 17}));
    EXPECT_EQ(g, (Steps{0, 1, 2, 4, 7, 12}));
  });
}

TEST(Adaptive, IgnoresRecordsThatWereNotRequested) {
  Scripted lean(comm::make_self(), adaptive(0.25)), eager(comm::make_self(), adaptive(0.25));
  for (int step = 0; step < 30; ++step) {
    (void)lean.step(scripted_a(step), 1);
    const double junk = 1e9, one = 1;
    const auto& p = eager.preconditioner;
    if (!p.wants_input(eager.fc))
      eager.preconditioner.record_input(eager.fc, view_of(&junk, {1, 1}));
    if (!p.wants_grad_output(eager.fc))
      eager.preconditioner.record_grad_output(eager.fc, view_of(&one, {1, 1}));
    (void)eager.step(scripted_a(step), 1);
    EXPECT_EQ(eager.gradient, lean.gradient) << step;
  }
}

optim::KfacOptions network(double alpha) { return {.curvature = adaptive(alpha)}; }

MakeOptimizer make(const optim::KfacOptions& options) {
  return [options](auto comm) { return optim::make_kfac(comm, options); };
}

// F6: staleness 1 is no staleness.
TEST(Adaptive, IsTheFixedIntervalOneWhenNothingIsEverSimilar) {
  const TrainSettings settings{.steps = 8};
  for (const auto inverse : {kfac::InverseMethod::eigen, kfac::InverseMethod::cholesky}) {
    optim::KfacOptions stale = network(0), fixed = network(0);
    stale.curvature.inverse.method = fixed.curvature.inverse.method = inverse;
    fixed.curvature.refresh.staleness = kfac::Staleness::fixed;
    const std::vector<double> expected = train_ranks<double>(2, make(fixed), settings);
    const std::vector<double> actual = train_ranks<double>(2, make(stale), settings);
    // Of Cholesky factors and inverses the one is cheaper for an inverse of one step, the other for
    // one of an unknown life: the same mathematics in other roundings.
    if (inverse == kfac::InverseMethod::eigen) {
      EXPECT_EQ(actual, expected);
    }
    EXPECT_TRUE(near(actual, expected, 1e-10));
    // The control: with an alpha that finds something similar the weights differ.
    stale.curvature.refresh.similarity = 0.6;
    EXPECT_FALSE(near(train_ranks<double>(2, make(stale), settings), expected, 1e-6));
  }
}

TEST(Adaptive, FindsIntervalsForFactorsAndBatchNormsThatAllRanksShare) {
  for (const auto form : {kfac::NormFisher::diagonal, kfac::NormFisher::unit_wise}) {
    optim::KfacOptions options = network(0.8);
    options.curvature.statistics.norm_fisher = form;
    options.curvature.statistics.new_weight = 0.3;  // the rule compares single batches all the same
    std::map<std::pair<int, StatisticKind>, std::int64_t> longest;
    std::set<std::size_t> refreshed_together;
    comm::run_ranks(2, [&](auto comm) {
      (void)train<double>(comm, make(options), {.steps = 16}, [&](const kfac::StepReport& report) {
        std::string text;
        std::size_t refreshed = 0;
        for (const kfac::StatisticReport& s : report.statistics) {
          text += detail::concat(s.layer, ' ', static_cast<int>(s.kind), ' ', s.refreshed, ' ',
                                 s.interval, ' ', s.age, ' ', s.drift, '\n');
          refreshed += s.refreshed ? 1 : 0;
          if (comm->rank() != 0) continue;
          auto& most = longest[{s.layer, s.kind}];
          most = std::max(most, s.interval);
        }
        comm::require_equal(*comm, text, "the reports");
        if (comm->rank() == 0) refreshed_together.insert(refreshed);
      });
    });
    EXPECT_EQ(longest.size(), 7U);  // A and G of three layers, one BatchNorm
    EXPECT_GT(longest.at({1, StatisticKind::norm}), 1);
    EXPECT_GT(longest.at({0, StatisticKind::a}), 1);
    // Not all of them in the same steps.
    EXPECT_GT(refreshed_together.size(), 2U);
  }
}

TEST(Adaptive, GivesTheSameWeightsAtEveryNumberOfRanks) {
  // Decisions are discrete; no drift of this run is within rounding of alpha.
  const TrainSettings settings{.steps = 12};
  EXPECT_TRUE(near(train_ranks<double>(3, make(network(0.5)), settings),
                   train_ranks<double>(1, make(network(0.5)), settings), 1e-10));
}

}  // namespace
}  // namespace dkfac::testing
