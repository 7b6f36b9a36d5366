// A small transformer of this library's layers, on a task that cannot be solved position by
// position: the first position requests the letter at another one.

#include <cmath>
#include <functional>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/comm/in_process.h"
#include "dkfac/core/random.h"
#include "dkfac/nn/kfac_attach.h"
#include "dkfac/nn/loss.h"
#include "dkfac/nn/model.h"
#include "dkfac/optim/optimizer.h"

#include "nn/nn_support.h"
#include "nn/shared/memory.h"
#include "support/natural_gradient.h"
#include "support/short_runs.h"

namespace dkfac::nn {
namespace {

using namespace dkfac::testing;

constexpr std::int64_t kLetters = 3, kPlaces = 4, kModelWidth = 12, kSamples = 32;
/// The first of the questions, which follow the letters.
constexpr std::int32_t kFirstQuestion = kLetters;

std::unique_ptr<Model> transformer(Context& ctx, DType dtype, bool attends) {
  auto net = std::make_unique<Sequential>();
  net->add<Embedding>("embed", kLetters + kPlaces - 1, kModelWidth)
      .add<SinusoidalPositions>("positions");
  if (attends) {
    auto attention = std::make_unique<Sequential>();
    attention->add<LayerNorm>("norm", kModelWidth)
        .add<Linear>("qkv", kModelWidth, 3 * kModelWidth)
        .add<SelfAttention>("attention", kModelWidth, 2)
        .add<Linear>("out", kModelWidth, kModelWidth);
    net->add<Residual>("attend", std::move(attention));
  }
  auto feedforward = std::make_unique<Sequential>();
  feedforward->add<LayerNorm>("norm", kModelWidth)
      .add<Linear>("in", kModelWidth, 4 * kModelWidth)
      .add<Celu>("celu")
      .add<Linear>("out", 4 * kModelWidth, kModelWidth);
  net->add<Residual>("feed", std::move(feedforward))
      .add<LayerNorm>("norm", kModelWidth)
      .add<GlobalPool>("mean", PoolKind::average)
      .add<Linear>("fc", kModelWidth, kLetters);
  return std::make_unique<Model>(ctx, "transformer", std::move(net), Shape{kPlaces}, dtype, 3);
}

struct AskedBatch {
  std::vector<std::int32_t> letters, labels;
  [[nodiscard]] ConstTensorView view() const {
    return view_of(letters.data(), {std::ssize(labels), kPlaces});
  }
};
AskedBatch asked_batch(std::uint64_t step, std::int64_t samples = kSamples) {
  Random random(step, 9);
  AskedBatch batch;
  for (std::int64_t n = 0; n < samples; ++n) {
    const auto question = static_cast<std::int32_t>(random.below(kPlaces - 1));
    batch.letters.push_back(kFirstQuestion + question);
    for (std::int64_t t = 1; t < kPlaces; ++t) {
      const auto letter = static_cast<std::int32_t>(random.below(kLetters));
      batch.letters.push_back(letter);
      if (t == question + 1) batch.labels.push_back(letter);
    }
  }
  return batch;
}

struct Trained {
  std::vector<double> losses;  ///< Loss of each step, on a new batch.
  std::vector<double> parameters;
  double correct = 0;  ///< On 512 further samples.
};

Trained train_transformer(const std::shared_ptr<comm::Communicator>& comm,
                          optim::Optimizer& optimizer, double lr, int steps, bool attends,
                          DType dtype = DType::f32) {
  Context ctx;
  const auto model = transformer(ctx, dtype, attends);
  OptimizerAttachment attachment(*model, optimizer);
  attachment.set_scale({.global_batch = kSamples});
  optimizer.prepare();
  const std::int64_t share = kSamples / comm->size(), first = comm->rank() * share;
  Tensor grad = Tensor::empty(ctx, Shape{share, kLetters}, dtype);
  const double scale = 1.0 / static_cast<double>(share);
  Trained out;
  for (int step = 0; step < steps; ++step) {
    const AskedBatch batch = asked_batch(static_cast<std::uint64_t>(step));
    const ConstTensorView logits =
        model->forward(ctx, batch.view().slice(0, first, share), Mode::train);
    const std::span<const std::int32_t> labels =
        std::span(batch.labels)
            .subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(share));
    out.losses.push_back(softmax_cross_entropy(ctx, logits, labels, 0, scale, grad).loss * scale);
    model->backward(ctx, grad);
    EXPECT_TRUE(optimizer.step({.lr = lr, .flags = {}}, Stream::cpu()).updated);
  }
  out.parameters = values(ctx, model->parameters());
  const AskedBatch unseen = asked_batch(1'000'000, 512);
  const LossSum sum = softmax_cross_entropy(ctx, model->forward(ctx, unseen.view(), Mode::eval),
                                            unseen.labels, 0, 1, TensorView{});
  out.correct = static_cast<double>(sum.correct) / 512;
  return out;
}

optim::KfacOptions transformer_kfac(DType dtype = DType::f32) {
  optim::KfacOptions options{.curvature = natural_gradient()};
  options.curvature.dtype = dtype;
  options.curvature.damping = 1e-2;
  options.curvature.kl_clip = 1e-3;
  options.momentum = 0.9;
  return options;
}

double mean_of_last_losses(const Trained& course) {
  constexpr std::size_t kLast = 20;
  double sum = 0;
  for (std::size_t i = course.losses.size() - kLast; i < course.losses.size(); ++i)
    sum += course.losses[i];
  return sum / static_cast<double>(kLast);
}

TEST(Transformer, LearnsWhatOnlyAttentionCanUnderKfacAndSgd) {
  if (kShortRuns) GTEST_SKIP() << "one rank learns in the other builds";
  const auto self = comm::make_self();
  const auto kfac = [&](bool attends) {
    const auto optimizer = optim::make_kfac(self, transformer_kfac());
    return train_transformer(self, *optimizer, 0.05, 200, attends);
  };
  const auto sgd = [&](bool attends) {
    const auto optimizer = optim::make_sgd(self, {.momentum = 0.9});
    return train_transformer(self, *optimizer, 0.01, 600, attends);
  };
  for (const auto& train : {std::function(kfac), std::function<Trained(bool)>(sgd)}) {
    const Trained with = train(true), without = train(false);
    EXPECT_LT(mean_of_last_losses(with), 0.25);
    EXPECT_GT(with.correct, 0.9);
    // Control: without the letter at one position, only the frequencies of the letters at three are
    // known, which leaves 0.75 of the log 3 = 1.1 of a guess.
    EXPECT_GT(mean_of_last_losses(without), 0.6);
    EXPECT_LT(without.correct, 0.7);
  }
}

TEST(Transformer, HasTheGradientOfCentralDifferences) {
  Context ctx;
  const auto model = transformer(ctx, DType::f64, true);
  const AskedBatch batch = asked_batch(1, 5);
  Tensor grad = Tensor::empty(ctx, Shape{5, kLetters}, DType::f64);
  const auto loss = [&](Mode mode) {
    return softmax_cross_entropy(ctx, model->forward(ctx, batch.view(), mode), batch.labels, 0, 1,
                                 grad)
        .loss;
  };
  (void)loss(Mode::train);
  model->backward(ctx, grad);
  const std::vector<double> gradient = values(ctx, model->gradients());
  double largest = 0;
  for (const double g : gradient) largest = std::max(largest, std::abs(g));
  EXPECT_GT(largest, 0.1);
  constexpr double kStep = 1e-5;
  auto* const parameters = model->parameters().data<double>();
  for (std::size_t i = 0; i < gradient.size(); i += 7) {
    const double kept = parameters[i];
    parameters[i] = kept + kStep;
    const double above = loss(Mode::eval);
    parameters[i] = kept - kStep;
    const double below = loss(Mode::eval);
    parameters[i] = kept;
    EXPECT_NEAR((above - below) / (2 * kStep), gradient[i], kGradientTolerance) << i;
  }
}

TEST(Transformer, GivesTheSameWeightsOnEveryNumberOfRanks) {
  const auto course = [](const std::shared_ptr<comm::Communicator>& comm) {
    const auto optimizer = optim::make_kfac(comm, transformer_kfac(DType::f64));
    return train_transformer(comm, *optimizer, 0.05, 6, true, DType::f64).parameters;
  };
  const std::vector<double> alone = course(comm::make_self());
  for (const int ranks : {2, 4})
    comm::run_ranks(ranks, [&](const std::shared_ptr<comm::Communicator>& comm) {
      // Sums in another order, 6 steps of inverses conditioned like 1e2.
      EXPECT_TRUE(near(course(comm), alone, 1e-9)) << ranks;
    });
}

TEST(Transformer, HasCurvatureInEveryLayerWithParameters) {
  Context ctx;
  const auto model = transformer(ctx, DType::f32, true);
  const auto optimizer = optim::make_kfac(comm::make_self(), transformer_kfac());
  const OptimizerAttachment attachment(*model, *optimizer);
  EXPECT_EQ(dkfac::describe(attachment.specs().at(0)), "embedding 6->12");
  for (const LayerSpec& spec : attachment.specs())
    EXPECT_FALSE(std::holds_alternative<PlainSpec>(spec)) << dkfac::describe(spec);
}

TEST(Transformer, TakesTheMemoryThatIsPlanned) {
  Context ctx;
  for (const Mode mode : {Mode::train, Mode::eval}) {
    const auto model = transformer(ctx, DType::f32, true);
    const AskedBatch batch = asked_batch(1, 8);
    const ConstTensorView logits = model->forward(ctx, batch.view(), mode);
    if (mode == Mode::train) {
      const Tensor grad = cast_to(ctx, logits, DType::f32);
      model->backward(ctx, grad);
    }
    const MemoryPlan plan = plan_memory(*model, 8, mode);
    EXPECT_EQ(model->allocated_bytes(), plan.parameters + plan.gradients + plan.buffers +
                                            plan.activations + plan.workspace + plan.statistics);
  }
}

TEST(Transformer, RefusesIndicesWhereItComputesInSixteenBits) {
  Context ctx;
  auto net = std::make_unique<Sequential>();
  net->add<Embedding>("embed", 9, 4).add<GlobalPool>("mean", PoolKind::average);
  Model model(ctx, "narrow", std::move(net), Shape{kPlaces}, DType::f32, 1, DType::bf16);
  const AskedBatch batch = asked_batch(1, 2);
  EXPECT_TRUE(contains(message_of([&] { model.forward(ctx, batch.view(), Mode::eval); }),
                       "a model of indices computes in its own dtype"));
}

}  // namespace
}  // namespace dkfac::nn
