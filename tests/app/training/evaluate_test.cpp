// Evaluation with flipped images and with averaged weights.

#include "app/training/evaluate.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/comm/in_process.h"
#include "dkfac/core/ops.h"
#include "dkfac/core/threads.h"
#include "dkfac/data/augment.h"
#include "dkfac/nn/layers.h"
#include "dkfac/nn/loss.h"

#include "app/checkpoint/run_record.h"
#include "app/logging/progress.h"
#include "app/logging/run_summary.h"
#include "app/shared/report.h"
#include "app/shared/trainer.h"

namespace dkfac::app {
namespace {

constexpr double kEps = std::numeric_limits<double>::epsilon();
constexpr TestViews kFlips{.flips = true};

/// Images, a loader over all of them in batches of 7, and a communicator of one rank.
struct Scene {
  explicit Scene(DType dtype = DType::f64)
      : data(data::synthetic_images(30, {6, 5, 3}, 4, 3)),
        loader(ctx, data, data::normalization_of(data),
               {.sampler = {.count = 30, .global_batch = 7, .shuffle = false, .drop_last = false},
                .dtype = dtype}),
        comm(comm::make_self()) {}
  Context ctx;
  data::Dataset data;
  data::DeviceLoader loader;
  std::shared_ptr<comm::Communicator> comm;
};

nn::Model symmetric_model(Context& ctx) {
  auto net = std::make_unique<nn::Sequential>();
  // The maximum over positions does not see where they are, to the last bit.
  net->add<nn::GlobalPool>("pool", nn::PoolKind::max).add<nn::Linear>("fc", 3, 4);
  return nn::Model(ctx, "symmetric", std::move(net), Shape{6, 5, 3}, DType::f64, 2);
}

std::unique_ptr<nn::Model> plain_model(Context& ctx) {
  return nn::make_model(
      ctx, {.name = "mlp", .input = Shape{6, 5, 3}, .classes = 4, .dtype = DType::f64});
}

TEST(FlipEvaluation, OfASymmetricModelIsThePlainOne) {
  Scene scene;
  nn::Model model = symmetric_model(scene.ctx);
  const Tally plain = evaluate(scene.ctx, model, scene.loader, *scene.comm);
  const ViewTally flipped = evaluate_views(scene.ctx, model, scene.loader, *scene.comm, kFlips);
  EXPECT_EQ(flipped.mean.loss, plain.loss);
  EXPECT_EQ(flipped.mean.correct, plain.correct);
  EXPECT_EQ(flipped.mean.samples, 30);
}

TEST(FlipEvaluation, TakesTheMeanOfTheLogits) {
  Scene scene;
  const auto model = plain_model(scene.ctx);
  double expected = 0, mean_of_losses = 0;
  scene.loader.start_epoch(scene.ctx, 0);
  for (data::DeviceBatch batch; scene.loader.next(scene.ctx, batch);) {
    const auto logits_of = [&](ConstTensorView images) {
      const ConstTensorView logits = model->forward(scene.ctx, images, nn::Mode::eval);
      Tensor copy = Tensor::empty(scene.ctx, logits.shape(), logits.dtype());
      ops::copy(scene.ctx, logits, copy);
      return copy;
    };
    const auto loss_of = [&](ConstTensorView logits) {
      return nn::softmax_cross_entropy(scene.ctx, logits, batch.host_labels, 0, 1, {}).loss;
    };
    Tensor flipped = Tensor::empty(scene.ctx, batch.images.shape(), DType::f64);
    nn::flip_horizontal(scene.ctx, batch.images, flipped);
    Tensor a = logits_of(batch.images);
    Tensor b = logits_of(flipped);
    mean_of_losses += 0.5 * (loss_of(a) + loss_of(b));
    for (std::int64_t i = 0; i < a.numel(); ++i)
      a.data<double>()[i] = 0.5 * (a.data<double>()[i] + b.data<double>()[i]);
    expected += loss_of(a);
  }
  const ViewTally flipped = evaluate_views(scene.ctx, *model, scene.loader, *scene.comm, kFlips);
  const Tally plain = evaluate(scene.ctx, *model, scene.loader, *scene.comm);
  // c*n*eps: 30 losses of about 1, four roundings more in each.
  EXPECT_NEAR(flipped.mean.loss, expected, 4 * 30 * kEps * expected);
  EXPECT_EQ(flipped.plain.loss, plain.loss);
  EXPECT_EQ(flipped.plain.correct, plain.correct);
  // Negative controls: neither the plain loss nor the mean of the two losses.
  EXPECT_GT(std::abs(flipped.mean.loss - plain.loss), 1e-6);
  EXPECT_GT(std::abs(flipped.mean.loss - mean_of_losses), 1e-6);
}

TEST(Evaluation, CountsLabelsAmongTheFirstFive) {
  Scene scene;
  Context& ctx = scene.ctx;
  const auto model = nn::make_model(
      ctx, {.name = "mlp", .input = Shape{6, 5, 3}, .classes = 12, .dtype = DType::f64});
  double expected = 0;
  scene.loader.start_epoch(ctx, 0);
  for (data::DeviceBatch batch; scene.loader.next(ctx, batch);) {
    const ConstTensorView logits = model->forward(ctx, batch.images, nn::Mode::eval);
    for (std::int64_t i = 0; i < logits.dim(0); ++i) {
      const double* row = logits.data<double>() + 12 * i;
      const double own = row[batch.host_labels[static_cast<std::size_t>(i)]];
      if (std::count_if(row, row + 12, [&](double other) { return other > own; }) < 5) ++expected;
    }
  }
  const Tally tally = evaluate(ctx, *model, scene.loader, *scene.comm);
  EXPECT_EQ(tally.top5, expected);
  EXPECT_GT(tally.top5, tally.correct);
  EXPECT_LT(tally.top5, tally.samples);
  EXPECT_EQ(top5_accuracy(tally, 12), expected / 30);
  EXPECT_FALSE(top5_accuracy(tally, 10)) << "five guesses of ten say little";
  EXPECT_EQ(top5_accuracy(tally, 6, 0.9), expected / 30) << "unless they are a target";
  EXPECT_FALSE(top5_accuracy(tally, 5, 0.9)) << "five guesses of five say nothing";
}

RunResult train_here(const std::vector<std::string>& keys, int ranks = 1) {
  std::vector<std::string> all = {"data.name=synthetic",
                                  "data.synthetic_train=192",
                                  "data.synthetic_test=50",
                                  "data.synthetic_size=12",
                                  "data.synthetic_classes=4",
                                  "train.global_batch=32",
                                  "run.epochs=2",
                                  "run.eval_batch=16",
                                  "lr.schedule=constant",
                                  "lr.lr=0.05",
                                  "optimizer.type=sgd"};
  all.insert(all.end(), keys.begin(), keys.end());
  const Config config = parse_config("", all, "test");
  const data::DataSplits data = data::load_data(data_source(config));
  RunResult result;
  comm::run_ranks(ranks, [&](std::shared_ptr<comm::Communicator> comm) {
    set_threads(1);
    const bool is_root = comm->rank() == 0;
    RunState state;
    train(config, std::move(comm), data, {}, state);
    if (is_root) result = state.result;
  });
  return result;
}

TEST(EpochEvaluation, TellsThePlainAccuracyBesideTheOneThatCounts) {
  const RunResult plain = train_here({});
  EXPECT_FALSE(plain.epochs[0].plain_accuracy);
  for (const std::vector<std::string>& keys :
       {std::vector<std::string>{"run.tta=true"},
        std::vector<std::string>{"train.ema_decay=0.9", "train.ema_interval=2"},
        std::vector<std::string>{"train.ema_decay=0.9", "run.tta=true"}}) {
    const RunResult run = train_here(keys);
    for (std::size_t e = 0; e < 2; ++e) {
      SCOPED_TRACE(keys[0]);
      ASSERT_TRUE(run.epochs[e].plain_accuracy);
      // Evaluation with other weights or images leaves no trace in the training.
      EXPECT_EQ(*run.epochs[e].plain_accuracy, plain.epochs[e].test_accuracy);
      EXPECT_EQ(run.epochs[e].train_loss, plain.epochs[e].train_loss);
      EXPECT_NE(run.epochs[e].test_loss, plain.epochs[e].test_loss);
    }
  }
}

TEST(EpochEvaluation, RecordsTheFirstFiveOfManyClasses) {
  const RunResult few = train_here({});
  EXPECT_FALSE(few.epochs[1].test_top5);
  const std::vector<std::string> keys{"data.synthetic_classes=20", "run.precision=f64",
                                      "model.batch_norm_groups=2"};
  const RunResult one = train_here(keys, 1), two = train_here(keys, 2);
  ASSERT_TRUE(one.epochs[1].test_top5);
  EXPECT_EQ(one.epochs[1].test_top5, two.epochs[1].test_top5);
  EXPECT_GE(*one.epochs[1].test_top5, one.epochs[1].test_accuracy);
  EXPECT_NE(run_text(one).find("among the first five"), std::string::npos);
  EXPECT_EQ(run_text(few).find("among the first five"), std::string::npos);
  const RunResult target = train_here({"run.target_top5=0.01", "data.synthetic_classes=10"});
  ASSERT_TRUE(target.epochs[1].test_top5) << "ten classes, with a target";
  EXPECT_GE(*target.epochs[1].test_top5, target.epochs[1].test_accuracy);
  EXPECT_EQ(target.epochs_to_target, 1);
  EXPECT_EQ(target.seconds_to_target, target.epochs[0].train_seconds) << "without the evaluation";
  EXPECT_FALSE(train_here({"data.synthetic_classes=10"}).epochs[1].test_top5);
  // Kept with the rest of the run.
  const RunResult read = parse_result(to_json(one), "memory");
  EXPECT_EQ(read.epochs[1].test_top5, one.epochs[1].test_top5);
}

TEST(EpochEvaluation, OfAveragesHoldsForEveryModelAndOptimizer) {
  for (const char* model : {"model.name=mlp", "model.name=lenet-bn"}) {
    for (const char* type : {"optimizer.type=sgd", "optimizer.type=lars", "optimizer.type=kfac"}) {
      const std::vector<std::string> keys{model, type, "run.epochs=1"};
      std::vector<std::string> averaged = keys;
      averaged.insert(averaged.end(), {"train.ema_decay=0.9", "train.ema_interval=1"});
      const RunResult plain = train_here(keys), run = train_here(averaged);
      EXPECT_EQ(run.epochs[0].train_loss, plain.epochs[0].train_loss);
      EXPECT_TRUE(std::isfinite(run.epochs[0].test_loss));
    }
  }
}

TEST(EpochEvaluation, OfAveragesIsTheSameOnTwoRanks) {
  const std::vector<std::string> keys{"run.precision=f64", "model.batch_norm_groups=2",
                                      "train.ema_decay=0.9", "train.ema_interval=2",
                                      "run.tta=true"};
  const RunResult one = train_here(keys, 1), two = train_here(keys, 2);
  // 12 steps of a network with ReLU, smooth in practice: c*n*eps with c*n = 1e6.
  EXPECT_NEAR(one.epochs[1].test_loss, two.epochs[1].test_loss, 1e6 * kEps);
  EXPECT_EQ(one.epochs[1].test_accuracy, two.epochs[1].test_accuracy);
}

// The recipe in small: filters from the data on every rank, frozen scales, ghost batches, averages,
// flipped images, augmentation that does not depend on the ranks.
TEST(EpochEvaluation, OfResnet9sChangesIsTheSameOnTwoRanks) {
  for (const std::vector<std::string>& model :
       {std::vector<std::string>{"model.name=resnet9", "model.width=2"},
        {"model.name=lenet-bn", "model.whitening=on", "model.frozen_bn_scale=on",
         "model.celu_alpha=0.3", "model.logit_scale=0.5",
         "model.pool_order=norm_pool_activation"}}) {
    SCOPED_TRACE(model.front());
    std::vector<std::string> keys{
        "run.precision=f64",    "data.synthetic_size=32",  "data.synthetic_channels=3",
        "train.ema_decay=0.9",  "train.ema_interval=2",    "run.tta=true",
        "augment.pad=4",        "augment.flip=true",       "augment.cutout=4",
        "model.ghost_batch=16", "data.synthetic_train=96", "data.synthetic_test=10"};
    keys.insert(keys.end(), model.begin(), model.end());
    const RunResult one = train_here(keys, 1), two = train_here(keys, 2);
    // 6 steps of a smooth network (CELU) with maxima, smooth in practice: c*n*eps with c*n = 1e7.
    EXPECT_NEAR(one.epochs[1].train_loss, two.epochs[1].train_loss, 1e7 * kEps);
    EXPECT_NEAR(one.epochs[1].test_loss, two.epochs[1].test_loss, 1e7 * kEps);
    keys.emplace_back("model.whitening=off");
    EXPECT_NE(train_here(keys).epochs[1].train_loss, one.epochs[1].train_loss);
  }
}

TEST(MedianOfLast, TakesTheLastFiveEpochs) {
  RunResult run;
  const auto add = [&](double accuracy) {
    EpochMetrics metrics;
    metrics.epoch = std::ssize(run.epochs) + 1;
    metrics.test_accuracy = accuracy;
    add_epoch(run, metrics);
  };
  EXPECT_EQ(median_of_last({}), 0);
  add(0.5);
  EXPECT_EQ(run.median_accuracy, 0.5);
  for (const double accuracy : {0.9, 0.7, 0.6, 0.8}) add(accuracy);
  EXPECT_EQ(run.median_accuracy, 0.7);
  add(0.1);
  EXPECT_EQ(run.median_accuracy, 0.7) << "of 0.9 0.7 0.6 0.8 0.1: the first is gone";
  add(0.2);
  EXPECT_EQ(run.median_accuracy, 0.6);
  EXPECT_EQ(run.final_accuracy, 0.2);
}

}  // namespace
}  // namespace dkfac::app
