// Several backward passes after one forward pass, and the optimizer calls that they make.

#include <gtest/gtest.h>

#include "dkfac/nn/kfac_attach.h"

#include "nn/fake_optimizer.h"
#include "nn/nn_support.h"
#include "support/both_backends.h"

namespace dkfac::nn {
namespace {

using namespace dkfac::testing;

/// Keeps the observer's arguments from layers with parameters.
class Keeper final : public LayerObserver {
 public:
  explicit Keeper(Context& ctx) : ctx_(ctx) {}
  void on_forward(Layer&, ConstTensorView) override {}
  void on_backward(Layer&, ConstTensorView dy) override { keep(dy); }
  void on_normalization(Layer&, ConstTensorView x, ConstTensorView mean, ConstTensorView inv_std,
                        ConstTensorView dy) override {
    for (const ConstTensorView& view : {x, mean, inv_std, dy}) keep(view);
  }
  [[nodiscard]] bool wants_gradients() const override { return gradients; }
  void on_gradients(Layer&) override { ++announced; }
  [[nodiscard]] std::vector<double> take() { return std::exchange(seen_, {}); }

  bool gradients = true;
  int announced = 0;

 private:
  void keep(ConstTensorView view) {
    const auto x = values(ctx_, view);
    seen_.insert(seen_.end(), x.begin(), x.end());
  }
  Context& ctx_;
  std::vector<double> seen_;
};

struct Case {
  const char* label;
  ModelOptions options;
};

std::vector<Case> cases() {
  ModelOptions resnet9{.name = "resnet9", .input = {32, 32, 3}, .width = 2};
  ModelOptions plain{.name = "resnet9-plain", .input = {32, 32, 3}, .width = 2};
  ModelOptions resnet20{.name = "resnet20", .input = {8, 8, 3}, .width = 4};
  ModelOptions resnet18{.name = "resnet18", .input = {16, 16, 3}, .width = 4};
  ModelOptions resnet50{.name = "resnet50", .input = {32, 32, 3}, .width = 4};
  ModelOptions lenet{.name = "lenet-bn", .input = {28, 28, 1}};
  ModelOptions lenet64 = lenet, bf16 = resnet20, f16 = lenet, bf16_pools = resnet50;
  lenet64.dtype = DType::f64;
  bf16.compute = bf16_pools.compute = DType::bf16;
  f16.compute = DType::f16;
  return {{"mlp", {.name = "mlp", .input = {5, 5, 1}}},
          {"lenet", lenet},
          {"lenet_f64", lenet64},
          {"lenet_f16", f16},
          {"resnet9", resnet9},
          {"resnet9_plain", plain},
          {"resnet20", resnet20},
          {"resnet20_bf16", bf16},
          {"resnet18", resnet18},
          {"resnet50", resnet50},
          {"resnet50_bf16", bf16_pools}};
}

/// Gradients and observer arguments of one backward pass.
struct Pass {
  std::vector<double> gradients, seen;
};

/// A model with one forward pass behind it.
class Passes {
 public:
  Passes(Context& ctx, const ModelOptions& options)
      : ctx_(ctx),
        model_(make_model(ctx, options)),
        keeper_(ctx),
        input_(random_tensor(ctx,
                             Shape{kBatch, options.input[0], options.input[1], options.input[2]},
                             options.dtype, 1)) {
    model_->set_observer(&keeper_);
    model_->forward(ctx, input_, Mode::train);
  }

  Pass run(std::uint64_t seed, bool gradients) {
    keeper_.gradients = gradients;
    model_->backward(ctx_,
                     random_tensor(ctx_, Shape{kBatch, model_->outputs()}, model_->dtype(), seed));
    return {values(ctx_, model_->gradients()), keeper_.take()};
  }
  Model& model() { return *model_; }
  Keeper& keeper() { return keeper_; }

 private:
  static constexpr std::int64_t kBatch = 4;
  Context& ctx_;
  std::unique_ptr<Model> model_;
  Keeper keeper_;
  Tensor input_;
};

class TwoPasses : public BothBackends {};
DKFAC_BOTH_BACKENDS(TwoPasses);

TEST_P(TwoPasses, AfterOneForwardPassAreEachAsIfAlone) {
  for (const Case& c : cases()) {
    const Pass loss = Passes(ctx, c.options).run(2, true);
    const Pass sampled = Passes(ctx, c.options).run(3, true);
    ASSERT_NE(loss.gradients, sampled.gradients) << c.label;
    ASSERT_NE(loss.seen, sampled.seen) << c.label;

    Passes first(ctx, c.options);  // Statistics first, then gradients.
    EXPECT_EQ(first.run(3, false).seen, sampled.seen) << c.label;
    const Pass second = first.run(2, true);
    EXPECT_EQ(second.gradients, loss.gradients) << c.label;
    EXPECT_EQ(second.seen, loss.seen) << c.label;

    Passes other(ctx, c.options);  // In the other order, the statistics leave the gradients
                                   // unchanged.
    EXPECT_EQ(other.run(2, true).gradients, loss.gradients) << c.label;
    const Pass last = other.run(3, false);
    EXPECT_EQ(last.seen, sampled.seen) << c.label;
    EXPECT_EQ(last.gradients, loss.gradients) << c.label;
  }
}

TEST_P(TwoPasses, LeaveUnwantedGradientsAlone) {
  Passes passes(ctx, {.name = "lenet-bn", .input = {28, 28, 1}});
  ops::fill(ctx, passes.model().gradients(), 7);
  for (const double g : passes.run(2, false).gradients) ASSERT_EQ(g, 7);
  EXPECT_EQ(passes.keeper().announced, 0);
  passes.run(2, true);
  EXPECT_GT(passes.keeper().announced, 0);
}

std::unique_ptr<Model> two_pass_model(Context& ctx) {
  auto net = std::make_unique<Sequential>();
  net->add<Conv2d>("conv", 1, 2, ConvOptions::square(3, {.pad = 1}))
      .add<BatchNorm2d>("bn", 2)
      .add<Flatten>("flatten")
      .add<Linear>("fc", 32, 3);
  return std::make_unique<Model>(ctx, "small", std::move(net), Shape{4, 4, 1}, DType::f64, 1);
}

/// The batch stays in place for the backward passes.
[[nodiscard]] Tensor forward(Context& ctx, Model& model, std::uint64_t seed) {
  Tensor x = random_tensor(ctx, Shape{4, 4, 4, 1}, DType::f64, seed);
  model.forward(ctx, x, Mode::train);
  return x;
}
void backward(Context& ctx, Model& model, std::uint64_t seed) {
  model.backward(ctx, random_tensor(ctx, Shape{4, 3}, DType::f64, seed));
}

TEST(PassUse, RecordsAndAnnouncesInThePassesItIsMeantFor) {
  Context ctx;
  const auto model = two_pass_model(ctx);
  FakeOptimizer optimizer;
  OptimizerAttachment attachment(*model, optimizer);
  attachment.set_scale({.global_batch = 40});
  const auto calls = [&] { return std::exchange(optimizer.calls, {}); };
  using Calls = std::vector<std::string>;

  attachment.set_pass({.statistics = true, .gradients = GradientUse::none});
  Tensor x = forward(ctx, *model, 1);
  backward(ctx, *model, 2);
  EXPECT_EQ(calls(),
            (Calls{"input 0", "input 2", "grad_output 2", "batch_norm 1", "grad_output 0"}));

  attachment.set_pass({.statistics = false});
  backward(ctx, *model, 3);
  EXPECT_EQ(calls(), (Calls{"ready 2", "ready 1", "ready 0"}));

  attachment.set_pass({.statistics = false, .gradients = GradientUse::add});
  x = forward(ctx, *model, 1);
  backward(ctx, *model, 3);
  EXPECT_EQ(calls(), Calls{});
}

TEST(PassUse, AddsGradientsUntilTheyAreAnnounced) {
  Context ctx;
  const auto model = two_pass_model(ctx);
  FakeOptimizer optimizer;
  OptimizerAttachment attachment(*model, optimizer);
  attachment.set_scale({.global_batch = 40});
  const auto gradients = [&](std::uint64_t seed, GradientUse use) {
    attachment.set_pass({.gradients = use});
    const Tensor x = forward(ctx, *model, seed);
    backward(ctx, *model, seed + 10);
    return values(ctx, model->gradients());
  };
  std::vector<std::vector<double>> parts;
  for (const std::uint64_t seed : {1U, 2U, 3U}) {
    parts.push_back(gradients(seed, GradientUse::announce));
  }
  for (int round = 0; round < 2; ++round) {  // Announced gradients are not counted again.
    gradients(1, GradientUse::add);
    gradients(2, GradientUse::add);
    const auto sum = gradients(3, GradientUse::announce);
    for (std::size_t i = 0; i < sum.size(); ++i) {
      ASSERT_EQ(sum[i], parts[2][i] + (parts[0][i] + parts[1][i])) << i;
    }
    EXPECT_EQ(gradients(2, GradientUse::announce), parts[1]);
  }
}

TEST(OptimizerAttachment, LeavesTheModelToOneThatWasMadeSince) {
  Context ctx;
  const auto model = two_pass_model(ctx);
  FakeOptimizer first, second;
  auto attachment = std::make_unique<OptimizerAttachment>(*model, first);
  attachment = std::make_unique<OptimizerAttachment>(*model, second);
  attachment->set_scale({.global_batch = 40});
  const Tensor x = forward(ctx, *model, 1);
  backward(ctx, *model, 2);
  EXPECT_TRUE(first.calls.empty());
  EXPECT_FALSE(second.calls.empty());
  attachment.reset();
  EXPECT_EQ(model->observer(), nullptr);
}

}  // namespace
}  // namespace dkfac::nn
