#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "nn/nn_support.h"

namespace dkfac::nn {
namespace {

using namespace dkfac::testing;

TEST(Relu, CutsOffNegativeValuesAndKeepsNan) {
  Context ctx;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double x[] = {-2, 0, 3, nan};
  Relu relu;
  const auto y = values(ctx, relu.forward(ctx, view_of(x, Shape{2, 2}), Mode::train));
  EXPECT_EQ(y[0], 0);
  EXPECT_EQ(y[1], 0);
  EXPECT_EQ(y[2], 3);
  EXPECT_TRUE(std::isnan(y[3]));
  const double dy[] = {5, 6, 7, 8};
  const auto dx = values(ctx, relu.backward(ctx, view_of(dy, Shape{2, 2}), InputGrad::needed));
  EXPECT_EQ(dx, (std::vector<double>{0, 0, 7, 0}));
}

TEST(Relu, GradientsMatchDifferencesAwayFromTheKink) {
  Context ctx;
  Relu relu;
  Tensor x = random_tensor(ctx, Shape{3, 4, 5, 2}, DType::f64, 1);
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    double& e = x.data<double>()[i];
    if (std::abs(e) < 1e-3) e += 0.1;
  }
  const GradientCheckResult result = check_gradients(ctx, relu, x, {.elements = 120});
  EXPECT_LE(result.worst, kGradientTolerance) << result.where;
  EXPECT_EQ(result.checked, 120);
}

TEST(Relu, CoversEveryElementOfALargeTensor) {
  Context ctx;
  Relu relu;
  const Tensor x = random_tensor(ctx, Shape{3, 33333}, DType::f32, 1);
  const Tensor dy = random_tensor(ctx, x.shape(), DType::f32, 2);
  const ConstTensorView y = relu.forward(ctx, x, Mode::train);
  const ConstTensorView dx = relu.backward(ctx, dy, InputGrad::needed);
  std::int64_t wrong = 0;
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    const float in = x.data<float>()[i];
    wrong += y.data<float>()[i] != (in > 0 ? in : 0.0F);
    wrong += dx.data<float>()[i] != (in > 0 ? dy.data<float>()[i] : 0.0F);
  }
  EXPECT_EQ(wrong, 0);
}

TEST(Relu, KeepsItsMemoryWhenTheBatchShrinksAndGrowsBack) {
  Context ctx;
  Relu relu;
  const Tensor x = random_tensor(ctx, Shape{8, 4}, DType::f32, 1);
  const void* first = relu.forward(ctx, x, Mode::train).raw();
  const ConstTensorView part = relu.forward(ctx, x.view().slice(0, 0, 3), Mode::train);
  EXPECT_EQ(part.shape(), (Shape{3, 4}));
  EXPECT_EQ(part.raw(), first);
  EXPECT_EQ(relu.forward(ctx, x, Mode::train).raw(), first);
}

double celu(double x, double alpha) { return x < 0 ? alpha * std::expm1(x / alpha) : x; }

TEST(Celu, FollowsItsDefinitionInBothPrecisions) {
  Context ctx;
  for (const double alpha : {0.075, 0.3, 1.0, 4.0}) {
    Celu layer(alpha);
    const Tensor x = random_tensor(ctx, Shape{3, 3333}, DType::f64, 1, -20 * alpha, 2);
    const Tensor x32 = to_f32(ctx, x);
    std::vector<double> expected, expected32;
    for (const double e : values(ctx, x)) expected.push_back(celu(e, alpha));
    for (const double e : values(ctx, x32)) expected32.push_back(celu(e, alpha));
    EXPECT_TRUE(near(values(ctx, layer.forward(ctx, x, Mode::train)), expected, 8 * eps<double>));
    EXPECT_TRUE(
        near(values(ctx, layer.forward(ctx, x32, Mode::train)), expected32, 8 * eps<float>));
  }
}

TEST(Celu, KeepsItsDigitsNearZeroInSinglePrecision) {
  // exp(x) - 1 by a subtraction would have none left; the negative control.
  Context ctx;
  Celu layer;
  const float tiny = -3e-6F, x[] = {tiny, -0.2F, -0.5F, -1e-30F, -200.0F, -0.0F};
  const auto y = values(ctx, layer.forward(ctx, view_of(x, Shape{6}), Mode::train));
  for (std::size_t i = 0; i < 6; ++i) {
    const double exact = std::expm1(static_cast<double>(x[i]));
    EXPECT_NEAR(y[i], exact, 8 * eps<float> * std::abs(exact)) << i;
  }
  const auto naive = static_cast<double>(std::exp(tiny) - 1.0F);
  EXPECT_GT(std::abs(naive - std::expm1(static_cast<double>(tiny))), 1e-3 * std::abs(naive));
}

TEST(Celu, KeepsNanAndInfinity) {
  Context ctx;
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = INFINITY;
  const float x[] = {nan, inf, -inf};
  Celu layer(0.5);
  const auto y = values(ctx, layer.forward(ctx, view_of(x, Shape{3}), Mode::train));
  EXPECT_TRUE(std::isnan(y[0]));
  EXPECT_EQ(y[1], inf);
  EXPECT_EQ(y[2], -0.5);
}

TEST(Celu, GradientsMatchDifferences) {
  Context ctx;
  Celu layer(0.3);
  const Tensor x = random_tensor(ctx, Shape{3, 4, 5, 2}, DType::f64, 1);
  const GradientCheckResult result = check_gradients(ctx, layer, x, {.elements = 120});
  EXPECT_LE(result.worst, kGradientTolerance) << result.where;
}

TEST(Celu, RefusesAnAlphaThatIsNotPositive) {
  EXPECT_THROW(Celu{0.0}, InvalidArgument);
  EXPECT_THROW(Celu{-1.0}, InvalidArgument);
  EXPECT_THROW(Celu{INFINITY}, InvalidArgument);
}

struct SmoothCase {
  SmoothKind kind;
  double (*exact)(double x);
  double (*derivative)(double x);
  float lowest;  ///< Down to which the promise of digits holds.
  double units;  ///< That promise, in units in the last place of f32.
};
double logistic(double x) { return 1 / (1 + std::exp(-x)); }
double normal_below(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }
double normal_density(double x) { return std::exp(-0.5 * x * x) / std::sqrt(2 * M_PI); }
const SmoothCase kSmoothCases[] = {
    {SmoothKind::tanh, [](double x) { return std::tanh(x); },
     [](double x) { return 1 / (std::cosh(x) * std::cosh(x)); }, -100, 4},
    {SmoothKind::sigmoid, logistic, [](double x) { return logistic(x) * logistic(-x); }, -87, 4},
    {SmoothKind::gelu, [](double x) { return x * normal_below(x); },
     [](double x) { return normal_below(x) + x * normal_density(x); }, -13, 8},
    {SmoothKind::silu, [](double x) { return x * logistic(x); },
     [](double x) { return logistic(x) * (1 + x * logistic(-x)); }, -87, 4}};

/// Numbers of both signs and many exponents, down to `lowest`.
Tensor many_numbers(Context& ctx, float lowest) {
  Tensor x = random_tensor(ctx, Shape{3, 40000}, DType::f32, 1, lowest, 20);
  float* at = x.data<float>();
  for (std::int64_t i = 0; i < 80000; ++i) at[i] *= std::exp2(-static_cast<float>(i % 40));
  return x;
}

TEST(Smooth, KeepsItsUnitsInTheLastPlaceOfTheDefinition) {
  Context ctx;
  for (const SmoothCase& c : kSmoothCases) {
    Smooth layer(c.kind);
    const Tensor x = many_numbers(ctx, c.lowest);
    const ConstTensorView y = layer.forward(ctx, x, Mode::train);
    double worst = 0, at = 0;
    for (std::int64_t i = 0; i < x.numel(); ++i) {
      const auto in = static_cast<double>(x.data<float>()[i]);
      const double exact = c.exact(in);
      const auto size = std::abs(static_cast<float>(exact));
      const auto unit = static_cast<double>(std::nextafter(size, INFINITY) - size);
      const double error = std::abs(static_cast<double>(y.data<float>()[i]) - exact) / unit;
      if (error > worst) at = in;
      worst = std::max(worst, error);
    }
    EXPECT_LE(worst, c.units) << layer.describe() << " at " << at;
    const Tensor wide = cast_to(ctx, x, DType::f64);
    std::vector<double> expected;
    for (const double e : values(ctx, wide)) expected.push_back(c.exact(e));
    // c = 8: a few operations on the library's functions.
    EXPECT_TRUE(near(values(ctx, layer.forward(ctx, wide, Mode::train)), expected, 8 * eps<double>))
        << layer.describe();
  }
}

TEST(Smooth, DerivativesInSinglePrecisionAreThoseOfTheDefinition) {
  Context ctx;
  for (const SmoothCase& c : kSmoothCases) {
    Smooth layer(c.kind);
    const Tensor x = many_numbers(ctx, c.lowest);
    Tensor ones = Tensor::empty(ctx, x.shape(), DType::f32);
    ops::fill(ctx, ones, 1);
    (void)layer.forward(ctx, x, Mode::train);
    std::vector<double> expected;
    for (const double e : values(ctx, x)) expected.push_back(c.derivative(e));
    // c = 16: digits of the output, and of the sum of two terms of other signs.
    EXPECT_TRUE(
        near(values(ctx, layer.backward(ctx, ones, InputGrad::needed)), expected, 16 * eps<float>))
        << layer.describe();
  }
}

TEST(Smooth, KeepsNanAndEndsWhereTheDefinitionDoes) {
  Context ctx;
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = INFINITY;
  const float x[] = {nan, inf, -inf, -3e38F, -0.0F};
  const double above[] = {1, 1, INFINITY, INFINITY}, below[] = {-1, 0, 0, 0};
  for (std::size_t k = 0; k < 4; ++k) {
    Smooth layer(kSmoothCases[k].kind);
    const auto y = values(ctx, layer.forward(ctx, view_of(x, Shape{5}), Mode::train));
    EXPECT_TRUE(std::isnan(y[0])) << layer.describe();
    EXPECT_EQ(y[1], above[k]) << layer.describe();
    // What is left where exp() would be subnormal, times 87.
    EXPECT_NEAR(y[2], below[k], 1e-35) << layer.describe();
    EXPECT_NEAR(y[3], below[k], 1e-35) << layer.describe();
    EXPECT_EQ(y[4], kSmoothCases[k].kind == SmoothKind::sigmoid ? 0.5 : 0) << layer.describe();
  }
}

TEST(Scale, MultipliesForwardAndBackward) {
  Context ctx;
  Scale layer(0.125);
  const double x[] = {8, -16, 0, 1}, dy[] = {1, 2, 3, 4};
  EXPECT_EQ(values(ctx, layer.forward(ctx, view_of(x, Shape{2, 2}), Mode::train)),
            (std::vector<double>{1, -2, 0, 0.125}));
  EXPECT_EQ(values(ctx, layer.backward(ctx, view_of(dy, Shape{2, 2}), InputGrad::needed)),
            (std::vector<double>{0.125, 0.25, 0.375, 0.5}));
  const Tensor random = random_tensor(ctx, Shape{3, 7}, DType::f64, 1);
  EXPECT_LE(check_gradients(ctx, layer, random).worst, kGradientTolerance);
}

}  // namespace
}  // namespace dkfac::nn
