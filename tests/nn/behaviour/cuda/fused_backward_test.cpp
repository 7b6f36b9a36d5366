#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/nn/layers.h"

#include "nn/backends/backend_normalize.h"
#include "nn/cuda/beside_host.h"
#include "nn/cuda/device_models.h"
#include "nn/cuda/layer_log.h"
#include "nn/fusion/plan.h"
#include "nn/fusion/state.h"
#include "nn/shared/fusion.h"

/// Convolutions that carry their gradient through the ReLU of the normalisation before them.
namespace dkfac::nn {
namespace {

using namespace dkfac::testing;

struct Pair {
  BatchNormOptions norm{.activation = {ActivationKind::relu}};
  ConvOptions conv = ConvOptions::square(3, {.pad = 1, .bias = false});
  std::int64_t channels = 8;
  bool nested = false;  ///< Each layer in a Sequential of its own.
};
constexpr std::int64_t kOut = 16;

std::unique_ptr<Sequential> make_pair_of(const Pair& options) {
  auto norm = std::make_unique<BatchNorm2d>(options.channels, options.norm);
  auto conv = std::make_unique<Conv2d>(options.channels, kOut, options.conv);
  auto pair = std::make_unique<Sequential>();
  if (options.nested) {
    auto first = std::make_unique<Sequential>(), second = std::make_unique<Sequential>();
    first->add("norm", std::move(norm));
    second->add("conv", std::move(conv));
    pair->add("first", std::move(first)).add("second", std::move(second));
  } else {
    pair->add("norm", std::move(norm)).add("conv", std::move(conv));
  }
  pair->set_name("");
  return pair;
}

/// A normalisation and its convolution on a device.
class Fused {
 public:
  Fused(const Pair& options, DType dtype, bool on)
      : log(ctx), pair(make_pair_of(options)), dtype_(dtype) {
    fuse(*pair, Fusion::gradient, on ? FusionUse::on : FusionUse::off);
    const auto on_host = make_pair_of(options);
    const LayerMemory from = bind_layer(host, *on_host, dtype);
    initialize_all(*on_host, 5);
    memory = bind_layer(ctx, *pair, dtype);
    ops::copy(ctx, from.values, memory.values);
    ops::copy(ctx, from.buffers, memory.buffers);
    ctx.stream().synchronize();
  }
  Passes run(const Shape& input) {
    const Tensor x = to_device(ctx, random_on_host(host, input, dtype_, 1));
    const Tensor dy = to_device(ctx, random_on_host(host, pair->output_shape(input), dtype_, 2));
    const std::int64_t waits = host_waits();
    const ConstTensorView y = pair->forward(ctx, x, Mode::train);
    const ConstTensorView dx = pair->backward(ctx, dy, InputGrad::needed);
    if (!is_watched_) {  // The log reads all tensors of its calls.
      EXPECT_EQ(host_waits(), waits);
    }
    return {device_values(ctx, y), device_values(ctx, dx), device_values(ctx, memory.grads),
            device_values(ctx, memory.buffers)};
  }
  Passes run_watched(const Shape& input) {
    is_watched_ = true;
    pair->visit([&](Layer& layer) { layer.set_observer(&log); });
    return run(input);
  }

  Context ctx{Device::cuda()}, host;
  LayerLog log;
  std::unique_ptr<Sequential> pair;
  LayerMemory memory;

 private:
  DType dtype_;
  bool is_watched_ = false;
};

Shape input_shape(std::int64_t channels = 8) { return {4, 6, 5, channels}; }

/// The gradient before the ReLU may be summed before it is rounded: sums of values of both signs
/// move by less than a spacing of the largest, and what is made of them rounds once more on both
/// sides; c = 4. No argument of the ReLU here is within rounding of 0, where signs might differ.
/// An observer is shown the same, within the same bound.
TEST(FusedBackwardOnDevice, IsThatOfPassesOfTheirOwn) {
  for (const bool nested : {false, true}) {
    const Pair options{.nested = nested};
    Fused fused(options, DType::f16, true), plain(options, DType::f16, false);
    const Passes actual = fused.run(input_shape()), expected = plain.run(input_shape());
    const FusedPairs on = fused_pairs(*fused.pair, Fusion::gradient),
                     off = fused_pairs(*plain.pair, Fusion::gradient);
    EXPECT_EQ(on.pairs, 1);
    EXPECT_TRUE(!is_emulated() || on.fused == 1);  // A device may have no engine for it.
    EXPECT_EQ(off.pairs, 1);
    EXPECT_EQ(off.fused, 0);
    const double bound = 4 * spacing(DType::f16);
    EXPECT_EQ(actual.y, expected.y);
    EXPECT_TRUE(near(actual.dx, expected.dx, bound));
    EXPECT_TRUE(near(actual.grads, expected.grads, bound));
    // Control: fused sums are not those of f64.
    EXPECT_EQ(actual.grads != expected.grads, on.fused == 1);

    (void)fused.run_watched(input_shape());
    (void)plain.run_watched(input_shape());
    ASSERT_EQ(fused.log.names, plain.log.names);
    for (std::size_t i = 0; i < fused.log.seen.size(); ++i)
      EXPECT_TRUE(near(fused.log.seen[i], plain.log.seen[i], bound)) << fused.log.names[i];
  }
}

TEST(FusedBackwardOnDevice, GivesTheSameBitsAgainAndWithAnObserver) {
  Fused fused({}, DType::f16, true), again({}, DType::f16, true);
  const Passes first = fused.run(input_shape());
  EXPECT_EQ(again.run_watched(input_shape()), first);
  // Without running statistics, which the first pass has moved.
  EXPECT_EQ(fused.run(input_shape()).dx, first.dx);
}

/// Where there is no engine, or no such pair, the bits are those of unfused passes. Engines differ
/// between devices; wherever they exist, fusion is correct.
TEST(FusedBackwardOnDevice, FallsBackAndIsCounted) {
  const auto count_fused = [](const Pair& options, DType dtype, std::int64_t pairs) {
    SCOPED_TRACE(detail::concat(dtype, " ", options.channels, " channels"));
    Fused fused(options, dtype, true), plain(options, dtype, false);
    const Passes actual = fused.run(input_shape(options.channels)),
                 expected = plain.run(input_shape(options.channels));
    const FusedPairs counted = fused_pairs(*fused.pair, Fusion::gradient);
    EXPECT_EQ(counted.pairs, pairs);
    if (counted.fused == 0) {
      EXPECT_EQ(actual, expected);
    } else {
      EXPECT_TRUE(near(actual.dx, expected.dx, 4 * spacing(dtype)));
      EXPECT_TRUE(near(actual.grads, expected.grads, 4 * spacing(dtype)));
    }
    return counted.fused;
  };
  const auto expect_none = [&](const Pair& options, DType dtype, std::int64_t pairs) {
    EXPECT_EQ(count_fused(options, dtype, pairs), 0);
  };
  const auto expect_none_emulated = [&](const Pair& options, DType dtype) {
    EXPECT_TRUE(count_fused(options, dtype, 1) == 0 || !is_emulated());
  };
  expect_none_emulated({}, DType::bf16);
  expect_none_emulated({.channels = 4}, DType::f16);
  expect_none({}, DType::f32, 1);
  expect_none({}, DType::f64, 1);
  expect_none({.norm = {.groups = 2, .activation = {ActivationKind::relu}}}, DType::f16, 0);
  expect_none({.norm = {.activation = {ActivationKind::celu}}}, DType::f16, 0);
  expect_none({.norm = {}}, DType::f16, 0);
}

TEST(FusedBackwardOnDevice, EndsWhenItIsSwitchedOff) {
  Fused fused({}, DType::f16, true), plain({}, DType::f16, false);
  (void)fused.run(input_shape());
  (void)plain.run(input_shape());
  fuse(*fused.pair, Fusion::gradient, FusionUse::off);
  EXPECT_EQ(fused.run(input_shape()), plain.run(input_shape()));
  EXPECT_EQ(fused_pairs(*fused.pair, Fusion::gradient).fused, 0);
}

/// Control: shared sums are used once, for their tensor alone, and not past a forward pass.
TEST(FusedBackwardOnDevice, SumsAreUsedForTheirTensorOnly) {
  constexpr std::int64_t kChannels = 8;
  Context ctx(Device::cuda()), host;
  BatchNorm2d norm(kChannels, {.activation = {ActivationKind::relu}});
  norm.set_name("norm");
  LayerMemory memory = bind_layer(ctx, norm, DType::f16);
  ops::fill(ctx, memory.values, 1);
  ops::fill(ctx, memory.buffers, 1);
  const Shape shape{4, 3, 2, kChannels};
  const Tensor x = to_device(ctx, random_on_host(host, shape, DType::f16, 1));
  const Tensor dy = to_device(ctx, random_on_host(host, shape, DType::f16, 2));
  const Tensor other = to_device(ctx, random_on_host(host, shape, DType::f16, 2));
  Tensor of_scale = Tensor::empty(ctx, Shape{kChannels}),
         of_shift = Tensor::empty(ctx, Shape{kChannels});
  ops::fill(ctx, of_scale, 3);
  ops::fill(ctx, of_shift, 5);
  const auto gradients = [&](ConstTensorView grad) {
    (void)norm.backward(ctx, grad, InputGrad::needed);
    return device_values(ctx, memory.grads);
  };
  (void)norm.forward(ctx, x, Mode::train);
  const std::vector<double> plain = gradients(dy);
  fusion_of(norm).gradient = {dy, of_scale, of_shift};
  std::vector<double> expected(kChannels, 3);
  expected.resize(2 * kChannels, 5);
  EXPECT_TRUE(near(gradients(dy), expected, 4 * spacing(DType::f32)));
  EXPECT_EQ(gradients(dy), plain) << "the sums are of one pass";
  fusion_of(norm).gradient = {dy, of_scale, of_shift};
  EXPECT_EQ(gradients(other), plain) << "the sums are of another tensor";
  EXPECT_EQ(gradients(dy), plain) << "a pass over another tensor ends them";
  fusion_of(norm).gradient = {dy, of_scale, of_shift};
  (void)norm.forward(ctx, x, Mode::train);
  EXPECT_EQ(gradients(dy), plain) << "a forward pass ends them";
}

TEST(FusedBackwardOnDevice, ANormalisationReportsOnlyWhatItDid) {
  Context ctx(Device::cuda()), host;
  const Shape shape{4, 3, 2, 8};
  const Tensor x = to_device(ctx, random_on_host(host, shape, DType::f16, 1));
  BatchNorm2d relu(8, {.activation = {ActivationKind::relu}}), free(8);
  LayerMemory a = bind_layer(ctx, relu, DType::f16), b = bind_layer(ctx, free, DType::f16);
  for (LayerMemory* memory : {&a, &b}) {
    ops::fill(ctx, memory->values, 1);
    ops::fill(ctx, memory->buffers, 1);
  }
  const ConstTensorView y = relu.forward(ctx, x, Mode::train);
  EXPECT_EQ(relu_norm(fusion_of(relu), y).x.raw(), x.view().raw());
  EXPECT_TRUE(relu_norm(fusion_of(relu), x).x.empty()) << "not its output";
  (void)relu.forward(ctx, x, Mode::eval);
  EXPECT_TRUE(relu_norm(fusion_of(relu), y).x.empty()) << "evaluation";
  add_next(free, x, {ActivationKind::relu});
  const ConstTensorView sum = free.forward(ctx, x, Mode::train);
  EXPECT_TRUE(relu_norm(fusion_of(free), sum).x.empty()) << "an addend";
}

TEST(FusedBackwardOnDevice, WhatDoesNotFitIsRefused) {
  const BatchNormOptions relu{.activation = {ActivationKind::relu}};
  for (const std::int64_t channels : {8, 16}) {
    Sequential pair;
    pair.add<BatchNorm2d>("norm", channels, relu);
    pair.add<Conv2d>("conv", 8, kOut, ConvOptions::square(3, {}));
    EXPECT_EQ(fused_pairs(pair, Fusion::gradient).pairs, channels == 8 ? 1 : 0);
  }
  Context ctx(Device::cuda()), host;
  const Tensor x = to_device(ctx, random_on_host(host, Shape{4, 3, 2, 8}, DType::f16, 1));
  const Tensor sum = Tensor::zeros(ctx, Shape{8}, DType::f32);
  const Tensor long_sum = Tensor::zeros(ctx, Shape{9}, DType::f32);
  BatchNorm2d one(8, relu), groups(8, {.groups = 2});
  const auto refusal = [&](BatchNorm2d& norm, ConstTensorView shift_grad) {
    LayerMemory memory = bind_layer(ctx, norm, DType::f16);
    ops::fill(ctx, memory.values, 1);
    ops::fill(ctx, memory.buffers, 1);
    (void)norm.forward(ctx, x, Mode::train);
    fusion_of(norm).gradient = {x, sum, shift_grad};
    return message_of([&] { norm.backward(ctx, x, InputGrad::needed); });
  };
  EXPECT_TRUE(contains(refusal(one, long_sum), "a sum is"));
  EXPECT_TRUE(contains(refusal(groups, sum), "one group"));
}

TEST(SumsOfGradients, AreThoseBeforeTheDeviationWasDivided) {
  Context host, ctx(Device::cuda());
  const NormShape s{1, 10, 3};
  const float of_scale[] = {6, -2, 0}, of_shift[] = {1, 2, 3}, inverse[] = {2, 0.5, 4};
  const auto run = [&](Context& at) {
    const auto there = [&](const float* values) {
      Tensor t = Tensor::empty(at, Shape{3});
      ops::copy(at, view_of(values, {3}), t);
      return t;
    };
    const Tensor a = there(of_scale), b = there(of_shift), c = there(inverse);
    Tensor g = Tensor::empty(at, Shape{1, 3}, DType::f64),
           centered = Tensor::empty(at, Shape{1, 3}, DType::f64);
    kernels::gradients_from_sums(at, s, a, b, /*gamma=*/c, c, {g, centered, {}, {}, {}});
    return std::pair{device_values(at, g), device_values(at, centered)};
  };
  const std::pair expected{std::vector<double>{1, 2, 3}, std::vector<double>{3, -4, 0}};
  EXPECT_EQ(run(host), expected);
  EXPECT_EQ(run(ctx), expected);
}

TEST(FusedBackwardPairs, AreThoseOfTheNetworks) {
  Context host;
  const auto pairs_of = [&](const std::string& name) {
    return make_model(host, small_model(name, DType::f32))->fused_backward().pairs;
  };
  EXPECT_EQ(pairs_of("resnet50"), 32);      // Two a block.
  EXPECT_EQ(pairs_of("resnet9-plain"), 3);  // The stem's, and one in each residual.
  EXPECT_EQ(pairs_of("resnet9"), 0);        // CELU.
}

/// Recorded passes replay it and give the bits of unrecorded passes, also with statistics of K-FAC.
TEST(FusedBackwardOnDevice, IsReplayedInRecordedPasses) {
  for (const Method method : {Method::sgd, Method::kfac}) {
    Recipe recipe{
        .model = small_model("resnet20", DType::f32, DType::f16), .method = method, .steps = 5};
    recipe.model.fused_backward = recipe.model.fused_moments = FusionUse::on;
    recipe.statistics_every = 3;
    std::vector<std::vector<double>> weights;
    for (const bool record : {true, false}) {
      recipe.capture = record;
      ModelTraining training(recipe, Device::cuda());
      for (int step = 0; step < recipe.steps; ++step) EXPECT_TRUE(training.step(step).updated);
      const FusedPairs pairs = training.model().fused_backward();
      EXPECT_EQ(pairs.pairs, 9);                        // One a block.
      EXPECT_TRUE(!is_emulated() || pairs.fused == 6);  // The first three have 4 channels.
      EXPECT_EQ(training.passes().counts().refused, 0) << training.passes().counts().reason;
      EXPECT_EQ(training.passes().counts().replayed > 0, record);
      weights.push_back(training.weights());
    }
    EXPECT_EQ(weights[0], weights[1]);
  }
}

/// Compares steps of K-FAC with and without fusion: their losses are within rounding.
TEST(FusedBackwardOnDevice, TrainsAsWithout) {
  Recipe recipe{
      .model = small_model("resnet20", DType::f32, DType::f16), .method = Method::kfac, .steps = 2};
  const TrainedModel plain = train_model(recipe, Device::cuda());
  recipe.model.fused_backward = FusionUse::on;
  const TrainedModel fused = train_model(recipe, Device::cuda());
  // c = 4 as for one pair: the first loss is the same, the second is after one step of rate 0.02.
  EXPECT_TRUE(near(fused.losses, plain.losses, 4 * spacing(DType::f16)));
  EXPECT_TRUE(!is_emulated() || fused.weights != plain.weights) << "control: nothing was fused";
}

}  // namespace
}  // namespace dkfac::nn
