// The loss scale as a state machine, and that a power of two leaves the bits of a training alone.

#include "app/training/loss_scale.h"

#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/comm/in_process.h"
#include "dkfac/core/threads.h"

#include "app/shared/trainer.h"

namespace dkfac::app {
namespace {

kfac::StepReport good() {
  kfac::StepReport report;
  report.updated = true;
  return report;
}

kfac::StepReport overflow() {
  kfac::StepReport report;
  report.agreement.nonfinite_gradient = 1;
  return report;
}

constexpr LossScaleOptions kDynamic{.mode = LossScaling::dynamic, .growth_interval = 4};

TEST(LossScale, StartsHighAndHalvesOnOverflow) {
  LossScale scale = first_loss_scale(kDynamic);
  EXPECT_EQ(scale.value, 65536);
  EXPECT_TRUE(advance(scale, kDynamic, overflow()));
  EXPECT_TRUE(advance(scale, kDynamic, overflow()));
  EXPECT_EQ(scale.value, 16384);
}

TEST(LossScale, DoublesAfterGoodStepsInARow) {
  LossScale scale = first_loss_scale(kDynamic);
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(advance(scale, kDynamic, good()));
  EXPECT_EQ(scale.value, 65536);
  EXPECT_TRUE(advance(scale, kDynamic, overflow()));  // Starts the count anew.
  for (int i = 0; i < 3; ++i) (void)advance(scale, kDynamic, good());
  EXPECT_EQ(scale.value, 32768);
  (void)advance(scale, kDynamic, good());
  EXPECT_EQ(scale.value, 65536);
  for (int i = 0; i < 4; ++i) (void)advance(scale, kDynamic, good());
  EXPECT_EQ(scale.value, 131072);
  EXPECT_EQ(LossScaleOptions{}.growth_interval, 2000);
}

TEST(LossScale, StaysBetweenItsBounds) {
  LossScale scale = first_loss_scale(kDynamic);
  int lowered = 0;
  for (int i = 0; i < 30; ++i) lowered += advance(scale, kDynamic, overflow());
  EXPECT_EQ(scale.value, 1);
  EXPECT_EQ(lowered, 16) << "at the floor an overflow is a lost step like any other";
  for (int i = 0; i < 4 * 40; ++i) (void)advance(scale, kDynamic, good());
  EXPECT_EQ(scale.value, 16777216);
}

TEST(LossScale, IsNotToBlameForALossThatIsNotFinite) {
  LossScale scale = first_loss_scale(kDynamic);
  kfac::StepReport report = overflow();
  report.agreement.nonfinite_loss = 1;
  EXPECT_FALSE(advance(scale, kDynamic, report));
  EXPECT_EQ(scale.value, 65536);
  kfac::StepReport data;
  data.agreement.data_error = 1;
  EXPECT_FALSE(advance(scale, kDynamic, data));
  EXPECT_EQ(scale.value, 65536);
}

TEST(LossScale, DoesNotMoveWhenFixedOrOff) {
  for (const LossScaling mode : {LossScaling::none, LossScaling::fixed}) {
    const LossScaleOptions options{.mode = mode, .initial = 128, .growth_interval = 1};
    LossScale scale = first_loss_scale(options);
    EXPECT_EQ(scale.value, mode == LossScaling::none ? 1 : 128);
    const double before = scale.value;
    EXPECT_FALSE(advance(scale, options, overflow()));
    EXPECT_FALSE(advance(scale, options, good()));
    EXPECT_EQ(scale.value, before);
  }
}

RunResult train_scaled(const std::vector<std::string>& keys) {
  std::vector<std::string> all = {"data.name=synthetic",
                                  "data.synthetic_train=128",
                                  "data.synthetic_test=50",
                                  "data.synthetic_size=12",
                                  "data.synthetic_classes=4",
                                  "train.global_batch=32",
                                  "run.epochs=1",
                                  "run.eval_batch=16",
                                  "lr.schedule=constant",
                                  "lr.lr=0.05"};
  all.insert(all.end(), keys.begin(), keys.end());
  const Config config = parse_config("", all, "test");
  const data::DataSplits data = data::load_data(data_source(config));
  set_threads(1);
  RunState state;
  train(config, comm::make_self(), data, {}, state);
  return state.result;
}

TEST(LossScaleTraining, WithAPowerOfTwoChangesNoBit) {
  for (const char* type : {"optimizer.type=sgd", "optimizer.type=lars", "optimizer.type=kfac"}) {
    SCOPED_TRACE(type);
    const RunResult plain = train_scaled({type});
    const RunResult scaled =
        train_scaled({type, "train.loss_scale=fixed", "train.initial_loss_scale=1024"});
    EXPECT_EQ(scaled.epochs[0].train_loss, plain.epochs[0].train_loss);
    EXPECT_EQ(scaled.epochs[0].test_loss, plain.epochs[0].test_loss);
    // Negative control: a rate 1024 times as high is another training.
    EXPECT_NE(
        train_scaled({type, "lr.lr=51.2", "train.max_skipped_steps=1000"}).epochs[0].train_loss,
        plain.epochs[0].train_loss);
  }
}

// 2^120 lifts gradients of f32 past its largest number; each halving costs a step, none of which
// counts as divergence.
TEST(LossScaleTraining, FindsAScaleThatFits) {
  const std::vector<std::string> keys{"optimizer.type=sgd", "train.max_skipped_steps=2",
                                      "run.epochs=12", "train.initial_loss_scale=1e42"};
  std::vector<std::string> dynamic = keys;
  dynamic.push_back("train.loss_scale=dynamic");
  const RunResult found = train_scaled(dynamic);
  EXPECT_EQ(found.status, "ok");
  EXPECT_GT(found.skipped_steps, 5);
  EXPECT_LT(found.skipped_steps, 40);
  std::vector<std::string> fixed = keys;
  fixed.push_back("train.loss_scale=fixed");
  EXPECT_THROW((void)train_scaled(fixed), RunError);
}

// The gradients of a mean over many samples, or behind small logits, are small: here a scale of
// 2^-20 makes them so, which f32 does not mind. A dynamic scale finds its way from there.
TEST(LossScaleTraining, KeepsGradientsThatWouldUnderflow) {
  const auto losses = [](std::vector<std::string> keys) {
    keys.insert(keys.end(), {"optimizer.type=sgd", "model.name=mlp", "run.epochs=6",
                             "train.max_skipped_steps=2"});
    const RunResult run = train_scaled(keys);
    return std::pair(run.epochs.front().train_loss, run.epochs.back().train_loss);
  };
  const std::vector<std::string> tiny{"train.loss_scale=fixed",
                                      "train.initial_loss_scale=9.5367431640625e-07"};
  const auto with = [](std::vector<std::string> keys, const char* key) {
    keys.emplace_back(key);
    return keys;
  };
  const auto f32 = losses(tiny), lost = losses(with(tiny, "run.precision=f16"));
  const auto kept = losses({"train.loss_scale=dynamic", "run.precision=f16"});
  EXPECT_LT(f32.second, 0.5 * f32.first);
  // All gradients have become 0: the mean over an epoch is that of the first network, but for the
  // places of samples in their batches, on which the rounding of an f32 product may depend
  // (oneDNN's kernels for AVX2).
  EXPECT_NEAR(lost.second, lost.first, 2 * 0x1p-23 * lost.first);
  EXPECT_LT(kept.second, 0.5 * kept.first);
  EXPECT_NEAR(kept.second, f32.second, 0.1 * f32.first) << "f16 has eleven bits";
}

}  // namespace
}  // namespace dkfac::app
