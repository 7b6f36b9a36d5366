#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "nn/nn_support.h"

namespace dkfac::nn {
namespace {

using namespace dkfac::testing;

TEST(Linear, ComputesTheProductAndTheBias) {
  Context ctx;
  Standalone<Linear> fc(ctx, DType::f64, 3, 2);
  const double weight[] = {1, 2, 3, -4, 5, 0.5}, bias[] = {10, -1};
  ops::copy(ctx, view_of(weight, Shape{2, 3}), fc.value(0));
  ops::copy(ctx, view_of(bias, Shape{2}), fc.value(1));
  const double x[] = {1, 0, -1, 2, 1, 4};
  const auto y = values(ctx, fc->forward(ctx, view_of(x, Shape{2, 3}), Mode::train));
  EXPECT_EQ(y, (std::vector<double>{8, -5.5, 26, -2}));
}

TEST(Linear, GradientsMatchDifferences) {
  Context ctx;
  for (const bool bias : {true, false}) {
    Standalone<Linear> fc(ctx, DType::f64, 7, 5, bias);
    const Tensor x = random_tensor(ctx, Shape{4, 7}, DType::f64, 1);
    const GradientCheckResult result = check_gradients(ctx, fc.layer, x);
    EXPECT_LE(result.worst, kGradientTolerance) << result.where;
    EXPECT_EQ(result.checked, 28 + 35 + (bias ? 5 : 0));
  }
}

/// All results of a pass over positions, by plain loops over rows.
struct PlainLinear {
  std::vector<double> y, dx, weight_grad, bias_grad;

  PlainLinear(const std::vector<double>& x, const std::vector<double>& weight,
              const std::vector<double>& bias, const std::vector<double>& dy) {
    const std::size_t out = bias.size(), in = weight.size() / out, rows = x.size() / in;
    y.resize(rows * out);
    dx.resize(x.size());
    weight_grad.resize(weight.size());
    bias_grad.resize(out);
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t o = 0; o < out; ++o) {
        y[r * out + o] = bias[o];
        bias_grad[o] += dy[r * out + o];
        for (std::size_t i = 0; i < in; ++i) {
          y[r * out + o] += x[r * in + i] * weight[o * in + i];
          dx[r * in + i] += dy[r * out + o] * weight[o * in + i];
          weight_grad[o * in + i] += dy[r * out + o] * x[r * in + i];
        }
      }
    }
  }
};

TEST(Linear, HasTheSameWeightsAtAllPositions) {
  for (const Backend backend : {Backend::fast, Backend::reference}) {
    Context ctx(Device::cpu(), {.backend = backend});
    for (const Shape& before : {Shape{3}, Shape{3, 4}, Shape{3, 2, 5}}) {
      SCOPED_TRACE(detail::concat(before));
      const auto with = [&](std::int64_t features) {
        return before.ndim() == 1   ? Shape{before[0], features}
               : before.ndim() == 2 ? Shape{before[0], before[1], features}
                                    : Shape{before[0], before[1], before[2], features};
      };
      Standalone<Linear> fc(ctx, DType::f64, 7, 6);
      ops::copy(ctx, random_tensor(ctx, Shape{6}, DType::f64, 3), fc.value(1));
      const Tensor x = random_tensor(ctx, with(7), DType::f64, 1);
      const Tensor dy = random_tensor(ctx, with(6), DType::f64, 2);
      const PlainLinear plain(values(ctx, x), values(ctx, fc.value(0)), values(ctx, fc.value(1)),
                              values(ctx, dy));
      const ConstTensorView y = fc->forward(ctx, x, Mode::train);
      EXPECT_EQ(y.shape(), dy.shape());
      // n = 30 rows at most, |terms| <= 1: c = 4.
      const double tolerance = 4 * 30 * eps<double>;
      EXPECT_TRUE(near(values(ctx, y), plain.y, tolerance));
      const ConstTensorView dx = fc->backward(ctx, dy, InputGrad::needed);
      EXPECT_EQ(dx.shape(), x.shape());
      EXPECT_TRUE(near(values(ctx, dx), plain.dx, tolerance));
      EXPECT_TRUE(near(values(ctx, fc.grad(0)), plain.weight_grad, tolerance));
      EXPECT_TRUE(near(values(ctx, fc.grad(1)), plain.bias_grad, tolerance));
      // Control: rows in another order give another result.
      std::vector<double> turned = values(ctx, x);
      std::rotate(turned.begin(), turned.begin() + 7, turned.end());
      const PlainLinear other(turned, values(ctx, fc.value(0)), values(ctx, fc.value(1)),
                              values(ctx, dy));
      EXPECT_FALSE(near(other.y, plain.y, 1e-3));
      EXPECT_FALSE(near(other.weight_grad, plain.weight_grad, 1e-3));
    }
  }
}

TEST(Linear, GradientsOverPositionsMatchDifferences) {
  Context ctx;
  Standalone<Linear> fc(ctx, DType::f64, 4, 5);
  const Tensor x = random_tensor(ctx, Shape{3, 2, 3, 4}, DType::f64, 1);
  const GradientCheckResult result = check_gradients(ctx, fc.layer, x);
  EXPECT_LE(result.worst, kGradientTolerance) << result.where;
  EXPECT_EQ(result.checked, 40 + 20 + 5);  // 40 of the inputs.
}

TEST(Linear, SinglePrecisionAgreesWithDoubleOnBothBackends) {
  for (const Backend backend : {Backend::fast, Backend::reference}) {
    Context ctx(Device::cpu(), {.backend = backend});
    Standalone<Linear> wide(ctx, DType::f64, 33, 17), narrow(ctx, DType::f32, 33, 17);
    ops::cast(ctx, wide.value(0), narrow.value(0));
    const Tensor x = random_tensor(ctx, Shape{9, 33}, DType::f64, 1);
    const Tensor dy = random_tensor(ctx, Shape{9, 17}, DType::f64, 2);
    const Tensor x32 = to_f32(ctx, x), dy32 = to_f32(ctx, dy);
    const double tolerance = 4 * 33 * eps<float>;  // 33 terms, rounded operands
    EXPECT_TRUE(near(values(ctx, narrow->forward(ctx, x32, Mode::train)),
                     values(ctx, wide->forward(ctx, x, Mode::train)), tolerance));
    EXPECT_TRUE(near(values(ctx, narrow->backward(ctx, dy32, InputGrad::needed)),
                     values(ctx, wide->backward(ctx, dy, InputGrad::needed)), tolerance));
    for (const std::size_t i : {std::size_t{0}, std::size_t{1}}) {
      EXPECT_TRUE(near(values(ctx, narrow.grad(i)), values(ctx, wide.grad(i)), tolerance));
    }
  }
}

TEST(Linear, GivesZeroGradientsForAnEmptyBatch) {
  Context ctx;
  Standalone<Linear> fc(ctx, DType::f32, 4, 3);
  ops::fill(ctx, fc.grad(0), 9.0);
  ops::fill(ctx, fc.grad(1), 9.0);
  const Tensor x = Tensor::empty(ctx, Shape{0, 4}), dy = Tensor::empty(ctx, Shape{0, 3});
  EXPECT_EQ(fc->forward(ctx, x, Mode::train).shape(), (Shape{0, 3}));
  EXPECT_EQ(fc->backward(ctx, dy, InputGrad::needed).shape(), (Shape{0, 4}));
  EXPECT_EQ(values(ctx, fc.grad(0)), std::vector<double>(12, 0.0));
  EXPECT_EQ(values(ctx, fc.grad(1)), std::vector<double>(3, 0.0));
}

TEST(Linear, NamesTheLayerAndBothShapesWhenTheInputDoesNotFit) {
  Context ctx;
  Standalone<Linear> fc(ctx, DType::f32, 4, 3);
  const Tensor x = Tensor::zeros(ctx, Shape{2, 5});
  const std::string message = message_of([&] { fc->forward(ctx, x, Mode::eval); });
  EXPECT_TRUE(contains(message, "[linear] 'probe'"));
  EXPECT_TRUE(contains(message, "[n, 4]"));
  EXPECT_TRUE(contains(message, "[2, 5]"));
  // As many elements in a sample, but other features in the last dimension; no samples.
  const Tensor image = Tensor::zeros(ctx, Shape{2, 4, 1}), one = Tensor::zeros(ctx, Shape{4});
  const std::string flattened = message_of([&] { fc->forward(ctx, image, Mode::eval); });
  EXPECT_TRUE(contains(flattened, "[2, 4, 1]"));
  EXPECT_TRUE(contains(flattened, "Flatten"));
  EXPECT_THROW(fc->forward(ctx, one, Mode::eval), InvalidArgument);
}

TEST(Linear, RefusesWhatItCannotComputeWith) {
  Context ctx;
  EXPECT_THROW(Linear(0, 3), InvalidArgument);
  EXPECT_THROW(Linear(3, -1), InvalidArgument);
  Linear unbound(4, 3);
  const Tensor x = Tensor::zeros(ctx, Shape{2, 4}),
               x64 = Tensor::zeros(ctx, Shape{2, 4}, DType::f64);
  EXPECT_TRUE(
      contains(message_of([&] { unbound.forward(ctx, x, Mode::eval); }), "bind_standalone"));
  Standalone<Linear> fc(ctx, DType::f32, 4, 3);
  EXPECT_THROW(fc->forward(ctx, x64, Mode::eval), InvalidArgument);
  const Tensor wide = Tensor::zeros(ctx, Shape{2, 6});
  EXPECT_THROW(fc->forward(ctx, wide.view().slice(1, 0, 4), Mode::eval), InvalidArgument);
}

TEST(Linear, RefusesBackwardWithoutForwardInTraining) {
  Context ctx;
  Standalone<Linear> fc(ctx, DType::f32, 4, 3);
  const Tensor x = Tensor::zeros(ctx, Shape{2, 4}), dy = Tensor::zeros(ctx, Shape{2, 3});
  EXPECT_THROW(fc->backward(ctx, dy, InputGrad::needed), InvalidArgument);
  fc->forward(ctx, x, Mode::train);
  EXPECT_NO_THROW(fc->backward(ctx, dy, InputGrad::needed));
  const Tensor wrong = Tensor::zeros(ctx, Shape{3, 3});
  EXPECT_TRUE(contains(message_of([&] { fc->backward(ctx, wrong, InputGrad::needed); }), "[2, 3]"));
  fc->forward(ctx, x, Mode::eval);
  EXPECT_THROW(fc->backward(ctx, dy, InputGrad::needed), InvalidArgument);
}

}  // namespace
}  // namespace dkfac::nn
