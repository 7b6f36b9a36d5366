// Whole runs on a device beside the same runs on the host.

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "app/checkpoint/run_record.h"
#include "app/tiny_run.h"
#include "support/host_waits.h"
#include "support/temp_folder.h"

namespace dkfac::app {
namespace {

using dkfac::testing::TempFolder;
using Keys = std::vector<std::string>;

constexpr double kEps = std::numeric_limits<double>::epsilon();
// 12 steps of sums in another order, each of which amplifies what came before by a factor of a few:
// c*n*eps with c*n = 1e7.
constexpr double kBar = 1e7 * kEps;

Keys with(Keys keys, const Keys& more) {
  keys.insert(keys.end(), more.begin(), more.end());
  return keys;
}

tiny::Outcome run_on(const std::string& device, const std::string& optimizer, const Keys& keys,
                     int ranks = 1, const CheckpointPlan& plan = {}, std::int64_t stop_at = 0) {
  const Config config = tiny::config(optimizer, with(keys, {"run.device=" + device}));
  return tiny::run(config, ranks, plan, stop_at);
}

/// Largest relative difference of the losses of the steps that both made.
double difference(const tiny::Outcome& a, const tiny::Outcome& b) {
  double worst = 0;
  for (const auto& [step, loss] : a.losses) {
    if (!b.losses.contains(step)) continue;
    worst = std::max(worst, std::abs(loss - b.losses.at(step)) / std::abs(loss));
  }
  return worst;
}

void expect_alike(const tiny::Outcome& there, const tiny::Outcome& here, double bar) {
  EXPECT_EQ(there.losses.size(), here.losses.size());
  EXPECT_LE(difference(there, here), bar);
  ASSERT_EQ(there.result.epochs.size(), here.result.epochs.size());
  for (std::size_t e = 0; e < here.result.epochs.size(); ++e) {
    const EpochMetrics &x = there.result.epochs[e], &y = here.result.epochs[e];
    EXPECT_NEAR(x.train_loss, y.train_loss, bar * y.train_loss);
    EXPECT_NEAR(x.test_loss, y.test_loss, bar * y.test_loss);
    EXPECT_EQ(x.train_accuracy, y.train_accuracy);
    EXPECT_EQ(x.test_accuracy, y.test_accuracy);
    EXPECT_EQ(x.train_top5, y.train_top5);
    EXPECT_EQ(x.step, y.step);
  }
}

/// The same bits.
void expect_same(const tiny::Outcome& a, const tiny::Outcome& b) {
  EXPECT_EQ(a.losses, b.losses);
  ASSERT_EQ(a.result.epochs.size(), b.result.epochs.size());
  for (std::size_t e = 0; e < a.result.epochs.size(); ++e) {
    EXPECT_EQ(a.result.epochs[e].train_loss, b.result.epochs[e].train_loss);
    EXPECT_EQ(a.result.epochs[e].test_loss, b.result.epochs[e].test_loss);
  }
}

class TrainingOnDevice : public ::testing::TestWithParam<std::string> {};

TEST_P(TrainingOnDevice, IsThatOfTheHost) {
  const Keys keys{"run.precision=f64"};
  const tiny::Outcome there = run_on("cuda", GetParam(), keys);
  expect_alike(there, run_on("cpu", GetParam(), keys), kBar);
  // What would pass a comparison that cannot fail.
  const tiny::Outcome other = run_on("cpu", GetParam(), with(keys, {"run.seed=2"}));
  EXPECT_GT(difference(there, other), 1e-4);
}

TEST_P(TrainingOnDevice, HoldsInF32) {
  Keys keys{"run.epochs=1"};
  // With a small epsilon AdamW, also that of Muon, goes by the sign of a gradient that is nothing
  // but rounding.
  if (GetParam() == "adamw" || GetParam() == "muon")
    keys.emplace_back("optimizer.adam_epsilon=0.01");
  // 6 steps: c*n*eps with c*n = 1e4.
  constexpr double kBar32 = 1e4 * static_cast<double>(std::numeric_limits<float>::epsilon());
  EXPECT_LE(difference(run_on("cuda", GetParam(), keys), run_on("cpu", GetParam(), keys)), kBar32);
}

TEST_P(TrainingOnDevice, IsTheSameOnTwoRanksOfOneDevice) {
  const Keys keys{"run.precision=f64", "model.batch_norm_groups=2"};
  const tiny::Outcome one = run_on("cuda", GetParam(), keys, 1);
  const tiny::Outcome two = run_on("cuda", GetParam(), keys, 2);
  for (std::size_t e = 0; e < 2; ++e) {
    EXPECT_NEAR(two.result.epochs[e].train_loss, one.result.epochs[e].train_loss, kBar);
    EXPECT_NEAR(two.result.epochs[e].test_loss, one.result.epochs[e].test_loss, kBar);
  }
}

TEST_P(TrainingOnDevice, ContinuesBitwiseIdentically) {
  const Keys keys{"train.ema_decay=0.9", "train.ema_interval=2", "augment.mixup=0.5"};
  const TempFolder folder;
  const tiny::Outcome whole = run_on("cuda", GetParam(), keys);
  const CheckpointPlan first{.folder = folder.path() / "a"};
  const tiny::Outcome begun = run_on("cuda", GetParam(), keys, 1, first, 4);
  EXPECT_EQ(begun.result.status, "stopped");
  const CheckpointPlan second{.folder = folder.path() / "b",
                              .resume = folder.path() / "a" / "step-000004"};
  const tiny::Outcome rest = run_on("cuda", GetParam(), keys, 1, second);
  EXPECT_EQ(rest.result.status, "ok");
  EXPECT_EQ(rest.losses.size(), 8u);
  for (const auto& [step, loss] : rest.losses) EXPECT_EQ(loss, whole.losses.at(step)) << step;
  for (std::size_t e = 0; e < 2; ++e) {
    EXPECT_EQ(rest.result.epochs[e].train_loss, whole.result.epochs[e].train_loss);
    EXPECT_EQ(rest.result.epochs[e].test_loss, whole.result.epochs[e].test_loss);
  }
}

TEST_P(TrainingOnDevice, ContinuesWithACheckpointOfTheHostAndTheOtherWayAround) {
  const Keys keys{"run.precision=f64", "train.ema_decay=0.9", "augment.mixup=0.5"};
  const tiny::Outcome whole = run_on("cpu", GetParam(), keys);
  for (const bool up : {true, false}) {
    const TempFolder folder;
    const CheckpointPlan first{.folder = folder.path() / "a"};
    (void)run_on(up ? "cpu" : "cuda", GetParam(), keys, 1, first, 4);
    const CheckpointPlan second{.folder = folder.path() / "b",
                                .resume = folder.path() / "a" / "step-000004"};
    const tiny::Outcome rest = run_on(up ? "cuda" : "cpu", GetParam(), keys, 1, second);
    EXPECT_EQ(rest.losses.size(), 8u);
    EXPECT_LE(difference(rest, whole), kBar);
    EXPECT_NEAR(rest.result.epochs[1].test_loss, whole.result.epochs[1].test_loss, kBar);
  }
}

TEST(TwoRanksOnDevice, FollowDriftsAndNarrowWiresAsOnTheHost) {
  const Keys narrow{"optimizer.statistics_wire=f16", "run.precision=f64"};
  const Keys adaptive{"optimizer.staleness=adaptive", "run.precision=f64"};
  for (const Keys& keys : {narrow, adaptive}) {
    SCOPED_TRACE(keys.front());
    const tiny::Outcome there = run_on("cuda", "kfac", keys, 2);
    expect_alike(there, run_on("cpu", "kfac", keys, 2), kBar);
    // And their state is all there after a restart.
    const TempFolder folder;
    const CheckpointPlan first{.folder = folder.path() / "a"};
    (void)run_on("cuda", "kfac", keys, 2, first, 4);
    const CheckpointPlan second{.folder = folder.path() / "b",
                                .resume = folder.path() / "a" / "step-000004"};
    const tiny::Outcome rest = run_on("cuda", "kfac", keys, 2, second);
    EXPECT_EQ(rest.losses.size(), 8u);
    for (const auto& [step, loss] : rest.losses) EXPECT_EQ(loss, there.losses.at(step)) << step;
  }
}

TEST(RunsOnDevice, CountLaunchesOverARestart) {
  const tiny::Outcome whole = run_on("cuda", "sgd", {});
  const TempFolder folder;
  const CheckpointPlan first{.folder = folder.path() / "a"};
  const tiny::Outcome begun = run_on("cuda", "sgd", {}, 1, first, 4);
  ASSERT_TRUE(begun.result.launches);
  const CheckpointPlan second{.folder = folder.path() / "b",
                              .resume = folder.path() / "a" / "step-000004"};
  const tiny::Outcome rest = run_on("cuda", "sgd", {}, 1, second);
  const auto passes = [](const tiny::Outcome& run) {
    const LaunchCounts& n = run.result.launches.value();
    return n.eager + n.replayed;
  };
  EXPECT_EQ(passes(begun), 4);
  EXPECT_EQ(passes(rest), passes(whole));
}

INSTANTIATE_TEST_SUITE_P(Optimizers, TrainingOnDevice,
                         ::testing::Values("sgd", "lars", "adamw", "muon", "kfac"),
                         [](const auto& param) { return param.param; });

/// Everything that changes what a step does, at once and a few at a time.
TEST(KeysOnDevice, TakesEveryKeyThatTheHostTakes) {
  const std::vector<std::pair<std::string, Keys>> runs{
      {"sgd", {"model.name=mlp", "augment.pad=1"}},
      {"sgd", {"augment.pad=2", "augment.flip=true", "augment.cutout=3", "run.tta=true"}},
      {"sgd", {"data.synthetic_classes=12", "augment.erase=0.5"}},  // Counts the top five.
      {"sgd", {"augment.mixup=0.5", "augment.erase=0.5", "train.label_smoothing=0.1"}},
      {"lars",
       {"train.micro_batches=2", "augment.randomness=per_group", "augment.pad=1",
        "train.drop_last=false", "train.global_batch=36"}},
      {"kfac", {"optimizer.fisher=monte_carlo", "train.label_smoothing=0.1"}},
      {"kfac",
       {"train.micro_batches=2", "augment.mixup=0.3", "augment.erase_inherit=true",
        "augment.erase=0.3", "train.ema_decay=0.9", "train.ema_interval=2", "run.tta=true"}},
      {"kfac", {"optimizer.inverse_method=eigen", "optimizer.statistics_interval=2"}},
      {"kfac", {"optimizer.staleness=adaptive"}}};
  for (const auto& [optimizer, keys] : runs) {
    SCOPED_TRACE(optimizer + " " + keys.front());
    const Keys all = with(keys, {"run.precision=f64"});
    expect_alike(run_on("cuda", optimizer, all), run_on("cpu", optimizer, all), kBar);
  }
}

// Factors of 32 rows have an eigenvalue of many dimensions, 0, whose vectors are the solver's
// choice, and moments along them depend on it: no comparison with the host.
TEST(KeysOnDevice, TakesScalesAlongEigenvectors) {
  const Keys keys{"optimizer.inverse_method=ekfac", "run.precision=f64"};
  const tiny::Outcome there = run_on("cuda", "kfac", keys), again = run_on("cuda", "kfac", keys);
  EXPECT_EQ(there.result.skipped_steps, 0);
  EXPECT_LT(there.result.epochs[1].train_loss, 0.8 * there.result.epochs[0].train_loss);
  expect_same(there, again);
}

TEST(KeysOnDevice, OfResnet9WithItsTricksIsThatOfTheHost) {
  const Keys keys{"run.precision=f64",       "data.synthetic_size=32", "data.synthetic_channels=3",
                  "model.name=resnet9",      "model.width=2",          "model.ghost_batch=16",
                  "train.ema_decay=0.9",     "train.ema_interval=2",   "run.tta=true",
                  "augment.pad=4",           "augment.flip=true",      "augment.cutout=4",
                  "data.synthetic_train=96", "data.synthetic_test=10", "train.label_smoothing=0.2"};
  for (const char* optimizer : {"sgd", "kfac"})
    expect_alike(run_on("cuda", optimizer, keys), run_on("cpu", optimizer, keys), 10 * kBar);
}

/// What 12 steps make of roundings to `eps`: the loss of an epoch moves by c*eps with c = 100; a
/// loss of the test set does by more, with running statistics of so few steps.
void expect_alike_in_16_bits(const tiny::Outcome& there, const tiny::Outcome& here, double eps) {
  EXPECT_EQ(there.result.status, "ok");
  EXPECT_EQ(there.result.skipped_steps, here.result.skipped_steps);
  std::int64_t counted = 0;
  for (const auto& [step, loss] : here.losses) {
    if (!std::isfinite(loss) || ++counted > 2) continue;
    EXPECT_NEAR(there.losses.at(step), loss, 4 * eps * loss) << step;
  }
  for (std::size_t e = 0; e < 2; ++e)
    EXPECT_NEAR(there.result.epochs[e].train_loss, here.result.epochs[e].train_loss,
                100 * eps * here.result.epochs[e].train_loss);
}

TEST(MixedPrecisionOnDevice, SearchesItsLossScale) {
  const Keys keys{"run.precision=f16", "train.loss_scale=dynamic",
                  "train.initial_loss_scale=1048576"};
  for (const char* optimizer : {"sgd", "kfac"}) {
    SCOPED_TRACE(optimizer);
    const tiny::Outcome there = run_on("cuda", optimizer, keys);
    EXPECT_GT(there.result.skipped_steps, 0) << "the first scale is too large";
    expect_alike_in_16_bits(there, run_on("cpu", optimizer, keys), 1.0 / 2048);
  }
}

TEST(MixedPrecisionOnDevice, TakesBf16WithoutAScale) {
  const Keys keys{"run.precision=bf16"};
  for (const char* optimizer : {"sgd", "kfac"})
    expect_alike_in_16_bits(run_on("cuda", optimizer, keys), run_on("cpu", optimizer, keys),
                            1.0 / 256);
}

TEST(RunsOnDevice, HaveTheSameBitsHoweverTheyAreLaunchedAndFed) {
  for (const char* optimizer : {"sgd", "kfac"}) {
    const Keys keys{"augment.pad=2", "augment.flip=true"};
    const tiny::Outcome usual = run_on("cuda", optimizer, keys);
    expect_same(run_on("cuda", optimizer, keys), usual);
    expect_same(run_on("cuda:0", optimizer, keys), usual);
    expect_same(run_on("cuda", optimizer, with(keys, {"run.graphs=off"})), usual);
    expect_same(run_on("cuda", optimizer, with(keys, {"data.resident=no"})), usual);
    expect_same(run_on("cuda", optimizer, with(keys, {"data.resident=yes"})), usual);
  }
}

// 4 + 4 + 6 + 6 steps.
constexpr const char* kPhases = R"(
[[phase]]
epochs = 2
data.synthetic_size = 8
train.global_batch = 48
[[phase]]
epochs = 2
train.micro_batches = 2
augment.mixup = 0.0
lr.lr = 0.01
)";

tiny::Outcome run_phases(const std::string& optimizer, const Keys& keys,
                         const CheckpointPlan& plan = {}, std::int64_t stop_at = 0) {
  const Keys network{"model.name=resnet20", "model.width=4", "augment.mixup=0.5"};
  return tiny::run(tiny::config(optimizer, with(network, keys), kPhases), 1, plan, stop_at);
}

TEST(PhasesOnDevice, AreThoseOfTheHost) {
  for (const char* optimizer : {"sgd", "kfac"}) {
    SCOPED_TRACE(optimizer);
    const tiny::Outcome there = run_phases(optimizer, {"run.device=cuda", "run.precision=f64"});
    // c*n*eps as above, over as many steps again.
    expect_alike(there, run_phases(optimizer, {"run.precision=f64"}), 100 * kBar);
    EXPECT_EQ(there.result.epochs.back().image_size, 12);
  }
}

TEST(PhasesOnDevice, HaveTheSameBitsHoweverTheyAreLaunchedAndResumed) {
  const Keys keys{"run.device=cuda"};
  const tiny::Outcome usual = run_phases("sgd", keys);
  expect_same(run_phases("sgd", with(keys, {"run.graphs=off"})), usual);
  expect_same(run_phases("sgd", with(keys, {"data.resident=no"})), usual);
  // Passes are captured anew in the second phase.
  ASSERT_TRUE(usual.result.launches);
  EXPECT_GE(usual.result.launches->captured, 2);
  EXPECT_GE(usual.result.launches->replayed, 10);
  const TempFolder folder;
  (void)run_phases("sgd", keys, {.folder = folder.path()}, 11);
  const tiny::Outcome rest = run_phases("sgd", keys, {.resume = folder.path() / "step-000011"});
  EXPECT_EQ(rest.losses.size(), 9u);
  for (const auto& [step, loss] : rest.losses) EXPECT_EQ(loss, usual.losses.at(step)) << step;
}

TEST(RunsOnDevice, WaitOnceInAStep) {
  if (!testing::is_emulated()) GTEST_SKIP() << "a real device does not count waits";
  for (const char* optimizer : {"sgd", "lars", "adamw", "muon", "kfac"}) {
    SCOPED_TRACE(optimizer);
    const Config config =
        tiny::config(optimizer, {"run.device=cuda", "data.resident=yes", "augment.flip=true",
                                 "train.ema_decay=0.9", "augment.mixup=0.5", "run.log_interval=0"});
    const data::DataSplits data = data::load_data(data_source(config));
    RunState state;
    std::vector<std::int64_t> waits;
    TrainHooks hooks;
    hooks.on_step = [&](const StepMetrics&) { waits.push_back(testing::host_waits()); };
    train(config, comm::make_self(), data, hooks, state);
    ASSERT_EQ(waits.size(), 12u);
    // Steps of the second epoch; what grows has grown.
    for (std::size_t step = 7; step < waits.size(); ++step)
      EXPECT_EQ(waits[step] - waits[step - 1], 1) << "step " << step + 1;
  }
}

/// By the clock of the emulated device, which counts work, the fused form of a pair is the faster.
/// BatchNorms extend over both ranks, also in the pass that measures.
TEST(RunsOnDevice, FuseWhatWasMeasuredOnAllRanksAndWhenResumed) {
  if (!testing::is_emulated()) GTEST_SKIP() << "what is faster on a real device is not known here";
  const Keys keys{"model.name=resnet20", "model.width=8", "run.precision=f16",
                  "data.synthetic_train=64", "model.batch_norm_groups=1"};
  const TempFolder folder;
  const tiny::Outcome whole = run_on("cuda", "sgd", keys, 2, {.folder = folder.path()});
  ASSERT_TRUE(whole.result.fused_moments && whole.result.fused_backward);
  EXPECT_EQ(whole.result.fused_moments->fused, 19);
  EXPECT_EQ(whole.result.fused_backward->fused, 9);
  const auto record =
      read_record(folder.path() / "step-000002", read_manifest(folder.path() / "step-000002"));
  EXPECT_EQ(record.fusions, std::string(19, '1') + '/' + std::string(9, '1'));
  const tiny::Outcome rest =
      run_on("cuda", "sgd", keys, 2, {.resume = folder.path() / "step-000002"});
  for (const auto& [step, loss] : rest.losses) EXPECT_EQ(loss, whole.losses.at(step)) << step;
  const Keys off = with(keys, {"model.fused_moments=off", "model.fused_backward=off"});
  EXPECT_NE(run_on("cuda", "sgd", off, 2).losses, whole.losses) << "control: nothing was fused";
}

TEST(RunsOnDevice, ReportWhatTheyUsed) {
  const tiny::Outcome outcome = run_on("cuda", "kfac", {"run.graphs=off"});
  EXPECT_TRUE(outcome.result.device.starts_with("cuda:0, ")) << outcome.result.device;
  for (const EpochMetrics& epoch : outcome.result.epochs) {
    ASSERT_TRUE(epoch.peak_memory);
    // Parameters, gradients and momentum at the least.
    EXPECT_GT(*epoch.peak_memory, 3 * 4 * static_cast<double>(outcome.result.parameters));
    if (testing::is_emulated()) {
      ASSERT_TRUE(epoch.utilisation);
      EXPECT_GT(*epoch.utilisation, 0);
    }
  }
  for (const char* activity : {"data", "forward", "backward", "statistics", "update", "evaluation"})
    EXPECT_GT(outcome.result.activity_seconds.at(activity), 0) << activity;
  EXPECT_FALSE(outcome.result.launches);
  // Passes are launched at once, with the statistics.
  for (const char* optimizer : {"sgd", "kfac"}) {
    const tiny::Outcome at_once = run_on("cuda", optimizer, {});
    EXPECT_GT(at_once.result.activity_seconds.at("passes"), 0);
    EXPECT_EQ(at_once.result.activity_seconds.count("forward"), 0u);
    EXPECT_EQ(at_once.result.activity_seconds.count("statistics"), 0u);
    ASSERT_TRUE(at_once.result.launches);
    EXPECT_GE(at_once.result.launches->replayed, 6) << at_once.result.launches->reason;
    EXPECT_EQ(at_once.result.launches->refused, 0) << at_once.result.launches->reason;
  }
  const tiny::Outcome host = run_on("cpu", "sgd", {});
  EXPECT_EQ(host.result.device, "cpu");
  EXPECT_FALSE(host.result.epochs[0].peak_memory);
  EXPECT_FALSE(host.result.epochs[0].utilisation);
}

TEST(RunsOnDevice, RefuseADeviceThatIsNotThere) {
  for (const int ranks : {1, 2}) {
    try {
      (void)run_on("cuda:77", "sgd", {}, ranks);
      FAIL() << "no error";
    } catch (const RunError& error) {
      EXPECT_EQ(error.scope, RunError::Scope::every_rank);
      EXPECT_EQ(error.failure.position.activity, "device");
      EXPECT_NE(error.failure.what.find("cuda:77"), std::string::npos) << error.failure.what;
      EXPECT_NE(error.failure.what.find("cuda:0"), std::string::npos) << error.failure.what;
    }
  }
}

}  // namespace
}  // namespace dkfac::app
