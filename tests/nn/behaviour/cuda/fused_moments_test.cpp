#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/nn/layers.h"

#include "nn/cuda/beside_host.h"
#include "nn/cuda/device_models.h"
#include "nn/cuda/layer_log.h"
#include "nn/fusion/plan.h"
#include "nn/fusion/state.h"

/// Normalisations whose moments come from sums that the convolution before them leaves.
namespace dkfac::nn {
namespace {

using namespace dkfac::testing;

struct ConvThenNorm {
  ConvOptions conv = ConvOptions::square(3, {.pad = 1, .bias = false});
  BatchNormOptions norm{.activation = {ActivationKind::relu}};
};
constexpr std::int64_t kIn = 8, kMaps = 16;

/// A convolution and its normalisation on a device.
class FusedMoments {
 public:
  FusedMoments(const ConvThenNorm& options, DType dtype, bool on) : log(ctx) {
    pair.add<Conv2d>("conv", kIn, kMaps, options.conv);
    pair.add<BatchNorm2d>("norm", kMaps, options.norm);
    pair.set_name("");
    fuse(pair, Fusion::moments, on ? FusionUse::on : FusionUse::off);
    Sequential on_host;
    on_host.add<Conv2d>("conv", kIn, kMaps, options.conv);
    on_host.add<BatchNorm2d>("norm", kMaps, options.norm);
    const LayerMemory from = bind_layer(host, on_host, dtype);
    initialize_all(on_host, 5);
    memory = bind_layer(ctx, pair, dtype);
    ops::copy(ctx, from.values, memory.values);
    ops::copy(ctx, from.buffers, memory.buffers);
    ctx.stream().synchronize();
  }
  Passes run(const Shape& input, DType dtype) {
    const Tensor x = to_device(ctx, random_on_host(host, input, dtype, 1));
    const Tensor dy = to_device(ctx, random_on_host(host, pair.output_shape(input), dtype, 2));
    const std::int64_t waits = host_waits();
    const ConstTensorView y = pair.forward(ctx, x, Mode::train);
    const ConstTensorView dx = pair.backward(ctx, dy, InputGrad::needed);
    EXPECT_EQ(host_waits(), waits);
    return {device_values(ctx, y), device_values(ctx, dx), device_values(ctx, memory.grads),
            device_values(ctx, memory.buffers)};
  }
  /// Runs the same passes with a logging observer.
  void watch(const Shape& input, DType dtype) {
    const Tensor x = to_device(ctx, random_on_host(host, input, dtype, 1));
    const Tensor dy = to_device(ctx, random_on_host(host, pair.output_shape(input), dtype, 2));
    pair.visit([&](Layer& layer) { layer.set_observer(&log); });
    pair.forward(ctx, x, Mode::train);
    pair.backward(ctx, dy, InputGrad::needed);
  }

  Context ctx{Device::cuda()}, host;
  Sequential pair;
  LayerMemory memory;
  LayerLog log;
};

Shape conv_input_shape() { return {4, 6, 5, kIn}; }

class FusedStatisticsOnDevice : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, FusedStatisticsOnDevice, ::testing::Values(DType::f16, DType::bf16),
                         name_of_dtype);

/// The convolution's output is summed before it is rounded: means move by up to half a spacing of
/// the largest output, variances by a spacing, and what is made of them rounds once more on both
/// sides; c = 4. The log shows the same calls, and statistics within the same bound.
TEST_P(FusedStatisticsOnDevice, AreThoseOfAPassOfTheirOwn) {
  const DType dtype = GetParam();
  FusedMoments fused({}, dtype, true), plain({}, dtype, false);
  const Passes actual = fused.run(conv_input_shape(), dtype),
               expected = plain.run(conv_input_shape(), dtype);
  const FusedPairs on = fused_pairs(fused.pair, Fusion::moments),
                   off = fused_pairs(plain.pair, Fusion::moments);
  EXPECT_EQ(on.pairs, 1);
  EXPECT_TRUE(!is_emulated() || on.fused == 1);  // A device may have no engine for it.
  EXPECT_EQ(off.pairs, 1);
  EXPECT_EQ(off.fused, 0);
  const double bound = 4 * spacing(dtype);
  EXPECT_TRUE(near(actual.y, expected.y, bound));
  EXPECT_TRUE(near(actual.dx, expected.dx, bound));
  EXPECT_TRUE(near(actual.grads, expected.grads, bound));
  EXPECT_TRUE(near(actual.buffers, expected.buffers, bound));

  fused.watch(conv_input_shape(), dtype);
  plain.watch(conv_input_shape(), dtype);
  ASSERT_EQ(fused.log.names, plain.log.names);
  for (std::size_t i = 0; i < fused.log.seen.size(); ++i)
    EXPECT_TRUE(near(fused.log.seen[i], plain.log.seen[i], bound)) << fused.log.names[i];
}

TEST_P(FusedStatisticsOnDevice, GiveTheSameBitsAgain) {
  FusedMoments fused({}, GetParam(), true), again({}, GetParam(), true);
  EXPECT_EQ(fused.run(conv_input_shape(), GetParam()), again.run(conv_input_shape(), GetParam()));
}

/// Control: shared sums are used once, and for their tensor alone.
TEST_P(FusedStatisticsOnDevice, AreUsedForTheirTensorOnly) {
  const DType dtype = GetParam();
  Context ctx(Device::cuda()), host;
  BatchNorm2d norm(kMaps);
  norm.set_name("norm");
  LayerMemory memory = bind_layer(ctx, norm, dtype);
  ops::fill(ctx, memory.values, 1);
  ops::fill(ctx, memory.buffers, 1);
  const Shape shape{4, 3, 2, kMaps};
  const Tensor x = to_device(ctx, random_on_host(host, shape, dtype, 1));
  const Tensor other = to_device(ctx, random_on_host(host, shape, dtype, 1));
  Tensor sum = Tensor::empty(ctx, Shape{kMaps}), squares = Tensor::empty(ctx, Shape{kMaps});
  ops::fill(ctx, sum, 0);
  ops::fill(ctx, squares, 24 * 4);  // mean 0, variance 4
  const auto run = [&](ConstTensorView of) {
    return device_values(ctx, norm.forward(ctx, of, Mode::train));
  };
  const std::vector<double> plain = run(x);
  fusion_of(norm).moments = {x, sum, squares};
  const std::vector<double> with_sums = run(x);
  std::vector<double> expected = device_values(ctx, x);
  for (double& v : expected) v = v / std::sqrt(4 + 1e-5) + 1;
  EXPECT_TRUE(near(with_sums, expected, spacing(dtype)));
  EXPECT_FALSE(near(with_sums, plain, 4 * spacing(dtype)));
  EXPECT_EQ(run(x), plain) << "the sums are of one pass";
  fusion_of(norm).moments = {x, sum, squares};
  EXPECT_EQ(run(other), plain) << "the sums are of another tensor";
  EXPECT_EQ(run(x), plain) << "a pass over another tensor ends them";
  fusion_of(norm).moments = {x, sum, squares};
  (void)norm.forward(ctx, x, Mode::eval);
  EXPECT_EQ(run(x), plain) << "evaluation ends them";
}

/// Where there is no engine the bits are those of unfused passes, and that is counted.
TEST(FusedPairOnDevice, FallBackAndAreCounted) {
  const auto expect_none = [](const ConvThenNorm& options, const Shape& input, DType dtype,
                              std::int64_t pairs) {
    SCOPED_TRACE(detail::concat(input, " ", dtype));
    FusedMoments fused(options, dtype, true), plain(options, dtype, false);
    EXPECT_EQ(fused.run(input, dtype), plain.run(input, dtype));
    EXPECT_EQ(fused_pairs(fused.pair, Fusion::moments).pairs, pairs);
    EXPECT_EQ(fused_pairs(fused.pair, Fusion::moments).fused, 0);
  };
  expect_none({}, conv_input_shape(), DType::f32, 1);
  expect_none({}, conv_input_shape(), DType::f64, 1);
  // Rows of a matrix go to cuBLAS.
  expect_none({.conv = ConvOptions::square(1, {.bias = false})}, Shape{1, 12, 1, kIn}, DType::f16,
              1);
  expect_none({.conv = ConvOptions::square(3, {.pad = 1, .bias = true})}, conv_input_shape(),
              DType::f16, 0);
  expect_none({.norm = {.groups = 2}}, conv_input_shape(), DType::f16, 0);
}

TEST(FusedPairOnDevice, EndWhenTheyAreSwitchedOff) {
  const DType dtype = DType::f16;
  FusedMoments fused({}, dtype, true), plain({}, dtype, false);
  const Passes with = fused.run(conv_input_shape(), dtype);
  const Passes first = plain.run(conv_input_shape(), dtype);
  fuse(fused.pair, Fusion::moments, FusionUse::off);
  EXPECT_EQ(fused.run(conv_input_shape(), dtype).y, plain.run(conv_input_shape(), dtype).y);
  EXPECT_EQ(fused_pairs(fused.pair, Fusion::moments).fused, 0);
  // Control: the sums are not those of rounded values.
  EXPECT_TRUE(!is_emulated() || with.buffers != first.buffers);
}

TEST(FusedPairOnDevice, WhatDoesNotFitIsRefused) {
  const auto pairs = [](std::int64_t channels, std::int64_t groups, bool bias) {
    Sequential pair;
    pair.add<Conv2d>("conv", kIn, kMaps, ConvOptions::square(3, {.bias = bias}));
    pair.add<BatchNorm2d>("norm", channels, BatchNormOptions{.groups = groups});
    return fused_pairs(pair, Fusion::moments).pairs;
  };
  EXPECT_EQ(pairs(kMaps, 1, false), 1);
  EXPECT_EQ(pairs(kMaps + 1, 1, false), 0);
  EXPECT_EQ(pairs(kMaps, 2, false), 0);
  EXPECT_EQ(pairs(kMaps, 1, true), 0);
  Context host;
  BatchNorm2d norm(kMaps), groups(kMaps, {.groups = 2});
  const Tensor x = Tensor::zeros(host, Shape{2, kMaps}, DType::f32);
  const Tensor sum = Tensor::zeros(host, Shape{kMaps}, DType::f32);
  const Tensor long_sum = Tensor::zeros(host, Shape{kMaps + 1}, DType::f32);
  fusion_of(groups).moments = {x, sum, sum};
  fusion_of(norm).moments = {x, sum, long_sum};
  EXPECT_TRUE(contains(message_of([&] { groups.forward(host, x, Mode::train); }), "one group"));
  EXPECT_TRUE(contains(message_of([&] { norm.forward(host, x, Mode::train); }), "a sum is"));
}

/// Recorded passes replay the sums and give the bits of unrecorded passes.
TEST_P(FusedStatisticsOnDevice, AreReplayedInRecordedPasses) {
  for (const Method method : {Method::sgd, Method::kfac}) {
    Recipe recipe{
        .model = small_model("resnet20", DType::f32, GetParam()), .method = method, .steps = 5};
    recipe.model.fused_moments = FusionUse::on;
    recipe.statistics_every = 3;
    std::vector<std::vector<double>> weights, buffers;
    for (const bool record : {true, false}) {
      recipe.capture = record;
      ModelTraining training(recipe, Device::cuda());
      for (int step = 0; step < recipe.steps; ++step) {
        EXPECT_TRUE(training.step(step).updated);
        const int waits = method == Method::kfac && step == 0 ? 2 : 1;  // The first: for inverses.
        EXPECT_EQ(training.waits(), is_emulated() ? waits : 0);
      }
      const FusedPairs statistics = training.model().fused_moments();
      EXPECT_EQ(statistics.pairs, 19);  // One a convolution.
      EXPECT_TRUE(!is_emulated() || statistics.fused == 19);
      EXPECT_EQ(training.passes().counts().refused, 0) << training.passes().counts().reason;
      EXPECT_EQ(training.passes().counts().replayed > 0, record);
      weights.push_back(training.weights());
      buffers.push_back(training.buffers());
    }
    EXPECT_EQ(weights[0], weights[1]);
    EXPECT_EQ(buffers[0], buffers[1]);
  }
}

/// Compares steps of K-FAC with and without fusion: their losses are within rounding.
TEST_P(FusedStatisticsOnDevice, TrainAsWithout) {
  Recipe recipe{
      .model = small_model("resnet20", DType::f32, GetParam()), .method = Method::kfac, .steps = 2};
  const TrainedModel plain = train_model(recipe, Device::cuda());
  recipe.model.fused_moments = FusionUse::on;
  const TrainedModel fused = train_model(recipe, Device::cuda());
  // c = 4 as for one pair: a loss is a mean over what 19 pairs have moved in all directions.
  EXPECT_TRUE(near(fused.losses, plain.losses, 4 * spacing(GetParam())));
  EXPECT_TRUE(!is_emulated() || fused.weights != plain.weights) << "control: nothing was fused";
}

}  // namespace
}  // namespace dkfac::nn
