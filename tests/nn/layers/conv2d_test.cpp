#include <gtest/gtest.h>

#include "dkfac/core/threads.h"

#include "nn/nn_support.h"

namespace dkfac::nn {
namespace {

using namespace dkfac::testing;

TEST(Conv2d, GivesTheSameForImagesInSeveralPanels) {
  // 200 images of 400 patches of 9 are cut into panels; one image alone is not.
  Context ctx;
  Standalone<Conv2d> conv(ctx, DType::f64, 1, 2, ConvOptions::square(3, {.pad = 1}));
  const Tensor x = random_tensor(ctx, Shape{200, 20, 20, 1}, DType::f64, 1);
  const auto all = values(ctx, conv->forward(ctx, x, Mode::train));
  const auto last = values(ctx, conv->forward(ctx, x.view().slice(0, 199, 1), Mode::train));
  EXPECT_TRUE(near(std::span(all).last(last.size()), last, 9 * eps<double>));

  // The weight gradient of the whole is the sum over its halves.
  const Tensor dy = random_tensor(ctx, Shape{200, 20, 20, 2}, DType::f64, 2);
  conv->forward(ctx, x, Mode::train);
  conv->backward(ctx, dy, InputGrad::needed);
  const auto whole = values(ctx, conv.grad(0));
  std::vector<double> sum(whole.size());
  for (const std::int64_t first : {0, 100}) {
    conv->forward(ctx, x.view().slice(0, first, 100), Mode::train);
    conv->backward(ctx, dy.view().slice(0, first, 100), InputGrad::skipped);
    const auto half = values(ctx, conv.grad(0));
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += half[i];
  }
  EXPECT_TRUE(near(whole, sum, 200 * 400 * eps<double>));
}

TEST(Conv2d, CountsReordersAndTheyAreTheSameEveryStep) {
  Context ctx;
  Standalone<Conv2d> conv(ctx, DType::f32, 16, 32, ConvOptions::square(3, {.pad = 1}));
  const Tensor x = random_tensor(ctx, Shape{4, 8, 8, 16}, DType::f32, 1);
  const Tensor dy = random_tensor(ctx, Shape{4, 8, 8, 32}, DType::f32, 2);
  std::vector<ReorderCount> counts{conv->reorders()};
  EXPECT_EQ(counts[0].reorders, 0);
  for (int step = 0; step < 3; ++step) {
    conv->forward(ctx, x, Mode::train);
    conv->backward(ctx, dy, InputGrad::needed);
    counts.push_back(conv->reorders());
  }
  const std::int64_t per_step = counts[1].reorders, bytes = counts[1].bytes;
  // At most: weights for forward, weights for backward-data, gradient back into the arena.
  EXPECT_LE(per_step, 3);
  EXPECT_GE(bytes, per_step * 16 * 32 * 9 * 4);
  EXPECT_EQ(per_step > 0, backend_info().onednn);
  for (std::int64_t step = 1; step <= 3; ++step) {
    EXPECT_EQ(counts[static_cast<std::size_t>(step)].reorders, step * per_step);
    EXPECT_EQ(counts[static_cast<std::size_t>(step)].bytes, step * bytes);
  }
}

TEST(Conv2d, PointsReorderOnlyTheWeightsOfAForwardPassOverManyPixels) {
  Context ctx;
  for (const std::int64_t size : {4, 40}) {
    Standalone<Conv2d> conv(ctx, DType::f32, 16, 32, ConvOptions::square(1, {.bias = false}));
    const Tensor x = random_tensor(ctx, Shape{1, size, size, 16}, DType::f32, 1);
    const Tensor dy = random_tensor(ctx, Shape{1, size, size, 32}, DType::f32, 2);
    conv->forward(ctx, x, Mode::train);
    conv->backward(ctx, dy, InputGrad::needed);
    EXPECT_LE(conv->reorders().reorders, size == 4 ? 0 : 1);
  }
}

TEST(Conv2d, ReordersNothingOnTheReferenceBackend) {
  Context ctx(Device::cpu(), {.backend = Backend::reference});
  Standalone<Conv2d> conv(ctx, DType::f32, 16, 32, ConvOptions::square(3, {.pad = 1}));
  const Tensor x = random_tensor(ctx, Shape{4, 8, 8, 16}, DType::f32, 1);
  conv->forward(ctx, x, Mode::train);
  EXPECT_EQ(conv->reorders().reorders, 0);
}

TEST(Conv2d, SeesWeightsThatChangedBetweenForwardPasses) {
  Context ctx;
  Standalone<Conv2d> conv(ctx, DType::f32, 16, 16,
                          ConvOptions::square(3, {.pad = 1, .bias = false}));
  const Tensor x = random_tensor(ctx, Shape{2, 8, 8, 16}, DType::f32, 1);
  const Tensor dy = random_tensor(ctx, Shape{2, 8, 8, 16}, DType::f32, 2);
  const auto y1 = values(ctx, conv->forward(ctx, x, Mode::train));
  const auto dx1 = values(ctx, conv->backward(ctx, dy, InputGrad::needed));
  const Tensor before = Tensor::copy_of(ctx, conv.value(0));
  ops::axpby(ctx, 2.0, before, 0.0, conv.value(0));
  auto y2 = values(ctx, conv->forward(ctx, x, Mode::train));
  auto dx2 = values(ctx, conv->backward(ctx, dy, InputGrad::needed));
  for (double& e : y2) e /= 2;
  for (double& e : dx2) e /= 2;
  EXPECT_EQ(y2, y1);  // Factors of two are exact.
  EXPECT_EQ(dx2, dx1);
}

TEST(Conv2d, ServesManyShapesAndThreadCountsInTurn) {
  Context ctx;
  Context oracle(Device::cpu(), {.backend = Backend::reference});
  Standalone<Conv2d> conv(ctx, DType::f32, 4, 8, ConvOptions::square(3, {.stride = 2, .pad = 1}));
  Standalone<Conv2d> expected(oracle, DType::f32, 4, 8,
                              ConvOptions::square(3, {.stride = 2, .pad = 1}));
  const int before = threads();
  for (int round = 0; round < 2; ++round) {
    for (const std::int64_t n : {1, 2, 3, 4, 5, 6}) {
      set_threads(1 + static_cast<int>(n) % 2);
      const Tensor x = random_tensor(ctx, Shape{n, 9, 7, 4}, DType::f32, 1);
      const Tensor dy = random_tensor(ctx, conv->output_shape(x.shape()), DType::f32, 2);
      const double tolerance = 2 * 72 * eps<float>;  // 9 * 8 terms
      EXPECT_TRUE(near(values(ctx, conv->forward(ctx, x, Mode::train)),
                       values(ctx, expected->forward(oracle, x, Mode::train)), tolerance));
      if (round == 1) set_threads(1);  // between forward and backward for every other size
      EXPECT_TRUE(near(values(ctx, conv->backward(ctx, dy, InputGrad::needed)),
                       values(ctx, expected->backward(oracle, dy, InputGrad::needed)), tolerance));
    }
  }
  set_threads(before);
}

TEST(Conv2d, GivesZeroGradientsForAnEmptyBatch) {
  Context ctx;
  Standalone<Conv2d> conv(ctx, DType::f32, 2, 3, ConvOptions::square(3, {.pad = 1}));
  ops::fill(ctx, conv.grad(0), 9.0);
  ops::fill(ctx, conv.grad(1), 9.0);
  const Tensor x = Tensor::empty(ctx, Shape{0, 5, 5, 2}),
               dy = Tensor::empty(ctx, Shape{0, 5, 5, 3});
  EXPECT_EQ(conv->forward(ctx, x, Mode::train).shape(), dy.shape());
  EXPECT_EQ(conv->backward(ctx, dy, InputGrad::needed).shape(), x.shape());
  EXPECT_EQ(values(ctx, conv.grad(0)), std::vector<double>(54, 0.0));
  EXPECT_EQ(values(ctx, conv.grad(1)), std::vector<double>(3, 0.0));
}

TEST(Conv2d, PassesNanOn) {
  for (const Backend backend : {Backend::fast, Backend::reference}) {
    Context ctx(Device::cpu(), {.backend = backend});
    Standalone<Conv2d> conv(ctx, DType::f32, 1, 2, ConvOptions::square(3, {.pad = 1}));
    Tensor x = random_tensor(ctx, Shape{1, 5, 5, 1}, DType::f32, 1);
    x.data<float>()[12] = std::numeric_limits<float>::quiet_NaN();
    const auto y = values(ctx, conv->forward(ctx, x, Mode::train));
    EXPECT_TRUE(std::isnan(y[24]));
    EXPECT_FALSE(std::isnan(y[0]));
  }
}

TEST(Conv2d, NamesTheLayerAndBothShapesWhenTheInputDoesNotFit) {
  Context ctx;
  Standalone<Conv2d> conv(ctx, DType::f32, 3, 4, ConvOptions{});
  const Tensor channels = Tensor::zeros(ctx, Shape{2, 8, 8, 1});
  const std::string message = message_of([&] { conv->forward(ctx, channels, Mode::eval); });
  EXPECT_TRUE(contains(message, "[conv2d] 'probe'"));
  EXPECT_TRUE(contains(message, "[n, h, w, 3]"));
  EXPECT_TRUE(contains(message, "[2, 8, 8, 1]"));
  const Tensor small = Tensor::zeros(ctx, Shape{2, 2, 8, 3});
  EXPECT_TRUE(contains(message_of([&] { conv->forward(ctx, small, Mode::eval); }), "too small"));
  const Tensor flat = Tensor::zeros(ctx, Shape{2, 3});
  EXPECT_THROW(conv->forward(ctx, flat, Mode::eval), InvalidArgument);
  // A kernel that fits into the padding alone.
  Standalone<Conv2d> padded(ctx, DType::f32, 3, 4, ConvOptions::square(3, {.pad = 2}));
  for (const Shape& shape : {Shape{2, 0, 8, 3}, Shape{2, 8, 0, 3}}) {
    const Tensor none = Tensor::zeros(ctx, shape);
    EXPECT_TRUE(contains(message_of([&] { padded->forward(ctx, none, Mode::eval); }), "too small"));
  }
}

TEST(Conv2d, RefusesImpossibleGeometry) {
  EXPECT_THROW(Conv2d(0, 1, {}), InvalidArgument);
  EXPECT_THROW(Conv2d(1, 1, {.window = {.kernel_h = 0, .kernel_w = 3}}), InvalidArgument);
  EXPECT_THROW(Conv2d(1, 1, {.window = {.kernel_h = 3, .kernel_w = 3, .stride_w = 0}}),
               InvalidArgument);
  EXPECT_THROW(Conv2d(1, 1, {.window = {.kernel_h = 3, .kernel_w = 3, .pad_h = -1}}),
               InvalidArgument);
  EXPECT_THROW(Conv2d(1, 1, {.window = {.kernel_h = 3, .kernel_w = 3, .dilation_h = 0}}),
               InvalidArgument);
  EXPECT_THROW(Conv2d(4, 4, {.groups = 0}), InvalidArgument);
  EXPECT_TRUE(contains(message_of([] { Conv2d(4, 6, {.groups = 4}); }), "groups is 4"));
  EXPECT_TRUE(contains(message_of([] { Conv2d(6, 4, {.groups = 3}); }), "groups is 3"));
  EXPECT_TRUE(contains(
      message_of([] {
        Conv2d(1, 1, {.window = {.kernel_h = 3, .kernel_w = 3, .stride_h = 2}, .same = true});
      }),
      "same"));
  EXPECT_THROW(Conv2d(1, 1, {.window = {.kernel_h = 3, .kernel_w = 3, .pad_w = 1}, .same = true}),
               InvalidArgument);
}

TEST(Conv2d, DescribesItsGeometry) {
  EXPECT_EQ(Conv2d(1, 6, {.window = ops::Window::square(5, 1, 2)}).describe(),
            "Conv2d 1->6 5x5 p2");
  EXPECT_EQ(Conv2d(8, 8,
                   {.window = {.kernel_h = 1,
                               .kernel_w = 3,
                               .stride_w = 2,
                               .pad_w = 1,
                               .dilation_h = 3,
                               .dilation_w = 2},
                    .groups = 4,
                    .bias = false})
                .describe(),
            "Conv2d 8->8 1x3/1x2 p0x1 d3x2 g4 without bias");
  EXPECT_EQ(Conv2d(3, 8, {.same = true, .frozen = true}).describe(), "Conv2d 3->8 3x3 same frozen");
}

}  // namespace
}  // namespace dkfac::nn
