#include <gtest/gtest.h>

#include "dkfac/core/ops.h"

#include "support/natural_gradient.h"
#include "support/near.h"
#include "support/plain_training.h"

// The number of ranks, overlap, bucket size and repetition change nothing but the order of sums.
namespace dkfac::testing {
namespace {

// Measured differences stay below 1e-13 after 20 steps; damping 1e-2 keeps the problem tame.
constexpr double kTolerance = 1e-10;

kfac::CurvatureOptions curvature() {
  kfac::CurvatureOptions options = natural_gradient();
  options.damping = 1e-2;
  options.dtype = DType::f64;
  options.communication.bucket_bytes = 4096;  // several buckets per exchange
  return options;
}

struct Method {
  std::string name;
  MakeOptimizer make;
};

Method kfac_method(std::string name, optim::KfacOptions options) {
  return {std::move(name), [options](auto comm) { return optim::make_kfac(comm, options); }};
}

std::vector<Method> methods() {
  using kfac::InverseMethod, optim::MomentumRule, optim::Rescale;
  std::vector<Method> all;
  all.push_back({"Sgd", [](auto comm) {
                   return optim::make_sgd(
                       comm, {.weight_decay = 1e-3, .communication = {.bucket_bytes = 512}});
                 }});
  all.push_back({"SgdNesterovUncorrected", [](auto comm) {
                   return optim::make_sgd(comm, {.nesterov = true, .momentum_correction = false});
                 }});
  all.push_back({"Lars", [](auto comm) {
                   return optim::make_lars(comm,
                                           {.eta = 0.1, .communication = {.bucket_bytes = 512}});
                 }});
  all.push_back({"Muon", [](auto comm) {
                   return optim::make_muon(comm, {.communication = {.bucket_bytes = 512}});
                 }});
  all.push_back(kfac_method("Kfac", {.curvature = curvature()}));
  all.push_back(kfac_method("KfacConstantMomentum",
                            {.curvature = curvature(), .momentum_rule = MomentumRule::constant}));
  all.push_back(kfac_method("KfacPaper", {.curvature = curvature(),
                                          .momentum_rule = MomentumRule::paper,
                                          .initial_lr = 0.05,
                                          .rescale = Rescale::always}));
  all.push_back(
      kfac_method("KfacShrinkDecay",
                  {.curvature = curvature(), .rescale = Rescale::shrink, .weight_decay = 1e-2}));
  optim::KfacOptions eigen{.curvature = curvature()};
  eigen.curvature.inverse.method = InverseMethod::eigen;
  eigen.curvature.statistics.norm_fisher = kfac::NormFisher::diagonal;
  all.push_back(kfac_method("KfacEigen", eigen));
  eigen.curvature.damping = 0;
  all.push_back(kfac_method("KfacRelativeEigen", eigen));
  optim::KfacOptions lazy{.curvature = curvature()};
  lazy.curvature.refresh.statistics_interval = 3;
  lazy.curvature.refresh.inverse_interval = 5;
  lazy.curvature.statistics.new_weight = 1;
  all.push_back(kfac_method("KfacLazy", lazy));
  optim::KfacOptions early{.curvature = curvature()};
  early.curvature.refresh.statistics_interval = 3;
  early.curvature.refresh.inverse_interval = 5;
  early.curvature.refresh.early_refreshes = true;
  early.curvature.statistics.average_start = kfac::AverageStart::trace;
  all.push_back(kfac_method("KfacEarly", early));
  early.curvature.inverse.block_width = 8;
  all.push_back(kfac_method("KfacEarlyBlocks", early));
  early.curvature.statistics.average_start = kfac::AverageStart::identity;
  early.curvature.inverse.method = InverseMethod::ekfac;
  early.curvature.distribution.grad_worker_fraction = 1;
  all.push_back(kfac_method("KfacEarlyEkfac", early));
  return all;
}

class EveryMethod : public ::testing::TestWithParam<Method> {};

TEST_P(EveryMethod, GivesTheSameWeightsAtEveryNumberOfRanks) {
  const std::vector<double> alone = train_ranks<double>(1, GetParam().make);
  for (const int ranks : short_or_full<std::vector<int>>({4}, {2, 3, 4}))
    EXPECT_TRUE(near(train_ranks<double>(ranks, GetParam().make), alone, kTolerance))
        << ranks << " ranks";
}

TEST_P(EveryMethod, MovesEveryParameterAwayFromWhereItStarted) {
  const std::vector<double> start = PlainNet<double>(3).parameters();
  const std::vector<double> end = train_ranks<double>(2, GetParam().make, {.steps = 2});
  for (std::size_t i = 0; i < start.size(); ++i) EXPECT_NE(start[i], end[i]) << i;
}

TEST_P(EveryMethod, RepeatsBitForBit) {
  EXPECT_EQ(train_ranks<double>(3, GetParam().make), train_ranks<double>(3, GetParam().make));
}

TEST_P(EveryMethod, TrainsInSinglePrecisionWithEqualBitsOnAllRanks) {
  const std::vector<double> f32 = train_ranks<float>(3, GetParam().make, {.steps = 4});
  const std::vector<double> f64 = train_ranks<double>(3, GetParam().make, {.steps = 4});
  // f32 arithmetic over 4 steps and sums of up to 384 terms: 100 * 384 * eps.
  EXPECT_TRUE(near(f32, f64, 100 * 384 * eps<float>));
}

INSTANTIATE_TEST_SUITE_P(Methods, EveryMethod, ::testing::ValuesIn(methods()),
                         [](const auto& test) { return test.param.name; });

std::vector<double> train_kfac(int ranks, kfac::CurvatureOptions options,
                               const TrainSettings& settings = {}) {
  return train_ranks<double>(
      ranks, [options](auto comm) { return optim::make_kfac(comm, {.curvature = options}); },
      settings);
}

TEST(Invariance, OverlapChangesNoBit) {
  kfac::CurvatureOptions overlapped = curvature(), blocking = curvature();
  overlapped.communication.overlap = true;
  blocking.communication.overlap = false;
  EXPECT_EQ(train_kfac(3, overlapped), train_kfac(3, blocking));
  const auto sgd = [](bool overlap) {
    return train_ranks<double>(3, [overlap](auto comm) {
      return optim::make_sgd(comm, {.communication = {.overlap = overlap, .bucket_bytes = 256}});
    });
  };
  EXPECT_EQ(sgd(true), sgd(false));
}

TEST(Invariance, BucketSizeChangesNoBit) {
  kfac::CurvatureOptions tiny = curvature(), whole = curvature();
  tiny.communication.bucket_bytes = 1;
  whole.communication.bucket_bytes = 1 << 30;
  EXPECT_EQ(train_kfac(3, tiny), train_kfac(3, whole));
}

TEST(Invariance, LossReductionAndLossScaleChangeRoundingOnly) {
  const std::vector<double> mean = train_kfac(2, curvature());
  for (const auto reduction :
       {LossReduction::local_mean, LossReduction::global_mean, LossReduction::sum}) {
    kfac::CurvatureOptions options = curvature();
    options.loss_reduction = reduction;
    EXPECT_TRUE(near(train_kfac(2, options, {.reduction = reduction}), mean, kTolerance));
    EXPECT_TRUE(near(train_kfac(2, options, {.loss_scale = 1024, .reduction = reduction}), mean,
                     kTolerance));
  }
}

TEST(Invariance, DampingMeansTheSameAtEveryBatchSize) {
  // A batch that holds every sample twice has the same mean gradient, A and G.
  const auto step_once = [](int copies) {
    PlainNet<double> net(3);
    const auto optimizer = optim::make_kfac(comm::make_self(), {.curvature = curvature()});
    const auto ids = register_layers(*optimizer, net);
    optimizer->prepare();
    PlainBatch<double> batch = plain_batch<double>(0, 0, 8), repeated{8 * copies, {}, {}};
    for (int c = 0; c < copies; ++c) {
      repeated.x.insert(repeated.x.end(), batch.x.begin(), batch.x.end());
      repeated.t.insert(repeated.t.end(), batch.t.begin(), batch.t.end());
    }
    const PlainHooks hooks = optimizer_hooks<double>(*optimizer, ids, {});
    net.forward(repeated, hooks);
    net.backward(1 / static_cast<double>(repeated.n), hooks);
    (void)optimizer->step({.lr = 0.1, .flags = {}}, Stream::cpu());
    return net.parameters();
  };
  // One step of sums over twice as many terms: 100 * 16 * 16 * eps.
  EXPECT_TRUE(near(step_once(2), step_once(1), 100 * 256 * eps<double>));
}

TEST(Invariance, DifferentRankCountsAreToldApartByTheTest) {
  // Negative control: a batch that is not the same over ranks moves the weights visibly.
  const std::vector<double> a = train_kfac(1, curvature(), {.global_batch = 24});
  const std::vector<double> b = train_kfac(1, curvature(), {.global_batch = 12});
  EXPECT_FALSE(near(a, b, 1e-3));
}

TEST(Invariance, IntervalsMatterOnceTheyExceedOne) {
  kfac::CurvatureOptions lazy = curvature();
  lazy.refresh.statistics_interval = lazy.refresh.inverse_interval = 4;
  EXPECT_FALSE(near(train_kfac(1, lazy), train_kfac(1, curvature()), 1e-6));
}

TEST(Invariance, RefreshesHappenAtTheFirstStepAndThenAtTheIntervals) {
  kfac::CurvatureOptions lazy = curvature();
  lazy.refresh.statistics_interval = 2;
  lazy.refresh.inverse_interval = 3;
  std::string statistics, inverses;
  (void)train<double>(
      comm::make_self(), [&](auto comm) { return optim::make_kfac(comm, {.curvature = lazy}); },
      {.steps = 8},
      [&](const kfac::StepReport& report) {
        statistics += report.statistics_refreshed ? 'x' : '.';
        inverses += report.inverses_refreshed ? 'x' : '.';
      });
  EXPECT_EQ(statistics, "x.x.x.x.");
  EXPECT_EQ(inverses, "x..x..x.");
}

TEST(SteadyRun, GrowsNoTemporaryMemory) {
  std::vector<std::int64_t> growths;
  (void)train<double>(
      comm::make_self(),
      [](auto comm) { return optim::make_kfac(comm, {.curvature = curvature()}); }, {.steps = 6},
      [&](const kfac::StepReport& report) { growths.push_back(report.scratch_growths); });
  EXPECT_GT(growths.front(), 0);
  EXPECT_EQ(growths[1], growths.back());
}

}  // namespace
}  // namespace dkfac::testing
