// A batch in parts, drawn labels, schedules: what the configuration makes of a step.

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "app/tiny_run.h"

namespace dkfac::app {
namespace {

using Keys = std::vector<std::string>;

Config in_f64(const std::string& optimizer, Keys keys) {
  keys.emplace_back("run.precision=f64");
  return tiny::config(optimizer, keys);
}

/// Largest relative difference of the losses of the steps.
double difference(const tiny::Outcome& a, const tiny::Outcome& b) {
  EXPECT_EQ(a.losses.size(), b.losses.size());
  double worst = 0;
  for (const auto& [step, loss] : a.losses)
    worst = std::max(worst, std::abs(loss - b.losses.at(step)) / std::abs(loss));
  return worst;
}

// 12 steps of sums in another order; each amplifies what came before by a factor of a few. As in
// the tests over ranks: c * n * eps with c * n = 1e6.
constexpr double kBar = 1e6 * std::numeric_limits<double>::epsilon();

TEST(MicroBatches, EqualOneBatch) {
  // 4 groups of 8 samples in one pass, or one group in each of 4.
  for (const std::string optimizer : {"sgd", "lars", "adamw", "muon", "kfac"}) {
    SCOPED_TRACE(optimizer);
    const Keys keys{"model.batch_norm_groups=4"};
    const tiny::Outcome whole = tiny::run(in_f64(optimizer, keys), 1, {});
    for (const char* parts : {"train.micro_batches=2", "train.micro_batches=4"}) {
      const tiny::Outcome cut = tiny::run(in_f64(optimizer, {keys[0], parts}), 1, {});
      EXPECT_LE(difference(whole, cut), kBar) << parts;
    }
    const tiny::Outcome ranks =
        tiny::run(in_f64(optimizer, {keys[0], "train.micro_batches=2"}), 2, {});
    EXPECT_NEAR(ranks.result.epochs[1].train_loss, whole.result.epochs[1].train_loss, kBar);
    // What would pass a comparison that cannot fail.
    const tiny::Outcome other = tiny::run(in_f64(optimizer, {"model.batch_norm_groups=2"}), 1, {});
    EXPECT_GT(difference(whole, other), 1e-4);
  }
}

// 33 samples over two ranks in three parts each: 6, 5, 6 and 5, 5, 6.
TEST(MicroBatches, OfUnequalSizesEqualOneBatchWithoutBatchNorm) {
  for (const std::string optimizer : {"sgd", "kfac"}) {
    Keys keys{"model.name=mlp", "train.global_batch=33"};
    const tiny::Outcome whole = tiny::run(in_f64(optimizer, keys), 1, {});
    keys.emplace_back("train.micro_batches=3");
    const tiny::Outcome cut = tiny::run(in_f64(optimizer, keys), 2, {});
    EXPECT_NEAR(cut.result.epochs[1].train_loss, whole.result.epochs[1].train_loss, kBar);
  }
}

TEST(MonteCarloFisher, IsDrawnAnewEachStepAndTheSameAtEveryRankCount) {
  const Keys keys{"optimizer.fisher=monte_carlo", "model.batch_norm_groups=2"};
  const tiny::Outcome one = tiny::run(in_f64("kfac", keys), 1, {});
  const tiny::Outcome empirical = tiny::run(in_f64("kfac", {keys[1]}), 1, {});
  EXPECT_EQ(one.losses.at(1), empirical.losses.at(1)) << "the first loss is that of the weights";
  EXPECT_NE(one.losses.at(2), empirical.losses.at(2));
  const tiny::Outcome two = tiny::run(in_f64("kfac", keys), 2, {});
  EXPECT_NEAR(two.result.epochs[1].train_loss, one.result.epochs[1].train_loss, kBar);
  Keys cut = keys;
  cut.emplace_back("train.micro_batches=2");
  EXPECT_LE(difference(one, tiny::run(in_f64("kfac", cut), 1, {})), kBar);
}

// With the statistics of the drawn labels out of reach, the gradients are those of the true ones.
TEST(MonteCarloFisher, LeavesTheGradientsAsTheyAre) {
  const Keys damped{"optimizer.damping=1e12", "lr.lr=2e10", "model.batch_norm_groups=2",
                    "optimizer.norm_damping=1", "optimizer.step_length=none"};
  Keys drawn = damped;
  drawn.emplace_back("optimizer.fisher=monte_carlo");
  // (F + l I)^-1 g = g / l up to |F| / l, which is below 1e-9 here.
  EXPECT_LE(
      difference(tiny::run(in_f64("kfac", damped), 1, {}), tiny::run(in_f64("kfac", drawn), 1, {})),
      1e-6);
}

TEST(QuadraticModel, HasItsSamplesFromEveryBatch) {
  const Keys keys{"optimizer.step_length=quadratic", "optimizer.fisher=monte_carlo",
                  "optimizer.statistics_fraction=0.5", "lr.schedule=constant", "lr.lr=1"};
  const tiny::Outcome one = tiny::run(in_f64("kfac", keys), 1, {});
  EXPECT_LT(one.result.epochs.back().train_loss, one.result.epochs.front().train_loss);
  Keys slower = keys;
  slower.back() = "lr.lr=0.1";
  EXPECT_GT(difference(one, tiny::run(in_f64("kfac", slower), 1, {})), 1e-3);
}

TEST(CurvatureSchedule, ReachesTheOptimizer) {
  const Config config = tiny::config(
      "kfac", {"optimizer.damping=1", "optimizer.damping_schedule=piecewise",
               "optimizer.damping_knots=[[0, 1], [1, 0.25]]", "optimizer.interval_schedule=ramp",
               "optimizer.interval_ramp_steps=4", "optimizer.early_refreshes=false",
               "optimizer.statistics_interval=3", "run.log_interval=1"});
  std::vector<double> damping;
  std::vector<bool> refreshed;
  TrainHooks hooks;
  hooks.on_step = [&](const StepMetrics& r) {
    damping.push_back(r.report.damping);
    refreshed.push_back(r.report.statistics_refreshed);
  };
  set_threads(1);
  RunState state;
  train(config, comm::make_self(), data::load_data(data_source(config)), hooks, state);
  ASSERT_EQ(damping.size(), 12U);
  for (std::size_t step = 0; step < damping.size(); ++step) {
    const double epoch = static_cast<double>(step) / 6;
    EXPECT_DOUBLE_EQ(damping[step], epoch >= 1 ? 0.25 : 1 - 0.75 * epoch);
  }
  // Intervals 1, 2, 2, 3, 3, ... of the steps, counted from the last refresh.
  const std::vector<bool> expected{true,  false, true, false, false, true,
                                   false, false, true, false, false, true};
  EXPECT_EQ(refreshed, expected);
}

}  // namespace
}  // namespace dkfac::app
