#include <map>

#include <gtest/gtest.h>

#include "support/natural_gradient.h"
#include "support/near.h"
#include "support/plain_training.h"

// Inverses that are rebuilt in different steps of an interval.
namespace dkfac::testing {
namespace {

optim::KfacOptions spread_options(int interval, bool spread) {
  optim::KfacOptions options{.curvature = natural_gradient()};
  options.curvature.damping = 1e-2;
  options.curvature.dtype = DType::f64;
  options.curvature.refresh.inverse_interval = interval;
  options.curvature.refresh.stagger_inverses = spread;
  return options;
}

MakeOptimizer make_spread(const optim::KfacOptions& options) {
  return [options](auto comm) { return optim::make_kfac(comm, options); };
}

/// Inverses that this rank rebuilt, by step.
std::vector<int> rebuilt(const std::shared_ptr<comm::Communicator>& comm,
                         const optim::KfacOptions& options, int steps) {
  std::vector<int> counts;
  (void)train<double>(comm, make_spread(options), {.steps = steps},
                      [&](const kfac::StepReport& report) {
                        counts.push_back(0);
                        for (const int count : report.inverses) counts.back() += count;
                      });
  return counts;
}

TEST(StaggerInverses, AreNoOthersThanBeforeInAnIntervalOfOneStep) {
  for (const int ranks : {1, 2})
    EXPECT_EQ(train_ranks<double>(ranks, make_spread(spread_options(1, true)), {.steps = 6}),
              train_ranks<double>(ranks, make_spread(spread_options(1, false)), {.steps = 6}));
  // The control: over three steps it matters when.
  EXPECT_NE(train_ranks<double>(1, make_spread(spread_options(3, true))),
            train_ranks<double>(1, make_spread(spread_options(3, false))));
}

TEST(StaggerInverses, DoNoMoreThanTheirShareInAnyStepButTheFirst) {
  // Two factors in each of three layers, one of which weighs more than the others together.
  EXPECT_EQ(rebuilt(comm::make_self(), spread_options(6, false), 13),
            (std::vector<int>{6, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 6}));
  const std::vector<int> even = rebuilt(comm::make_self(), spread_options(6, true), 13);
  EXPECT_EQ(even, (std::vector<int>{6, 0, 2, 0, 2, 0, 2, 0, 2, 0, 2, 0, 2}));
  const std::vector<int> two = rebuilt(comm::make_self(), spread_options(2, true), 7);
  EXPECT_EQ(two, (std::vector<int>{6, 4, 2, 4, 2, 4, 2}));  // the wide one against the others
}

TEST(StaggerInverses, GiveEqualBitsOnAllRanksEachTime) {
  // Within a run the training loop compares the ranks.
  const TrainSettings settings{.steps = 9};
  EXPECT_EQ(train_ranks<double>(3, make_spread(spread_options(4, true)), settings),
            train_ranks<double>(3, make_spread(spread_options(4, true)), settings));
}

TEST(StaggerInverses, CountTheOperationsOfThoseThatWaited) {
  const auto cube = [](double d) { return d * d * d; };
  // conv 18 -> 3, fc1 48 + 1 -> 5, fc2 5 -> 3.
  const double all = cube(18) + cube(3) + cube(49) + cube(5) + cube(5) + cube(3);
  comm::run_ranks(2, [&](auto comm) {
    double skipped = 0;
    int step = 0;
    (void)train<double>(comm, make_spread(spread_options(6, true)), {.steps = 13},
                        [&](const kfac::StepReport& report) {
                          if (step++ == 0) {
                            EXPECT_EQ(report.flops_skipped, 0);
                          }
                          skipped += report.flops_skipped;
                          EXPECT_EQ(report.bytes_skipped, 0U);  // statistics are due every step
                        });
    // Over two whole intervals each factor was rebuilt twice and waited ten times.
    EXPECT_EQ(skipped, 10 * all);
  });
}

}  // namespace
}  // namespace dkfac::testing
