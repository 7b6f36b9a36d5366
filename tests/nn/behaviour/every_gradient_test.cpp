#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/ops.h"
#include "dkfac/nn/gradient_check.h"

#include "nn/models/pad_shortcut.h"
#include "nn/nn_support.h"

/// E11 of docs/project/proof.md: the gradient and the tangent of every layer against central
/// differences, element by element, on both backends.
namespace dkfac::nn {
namespace {

using namespace dkfac::testing;
using MakeLayer = std::function<std::unique_ptr<Layer>()>;

struct Case {
  std::string name;
  Shape input;
  MakeLayer make;
};
void PrintTo(const Case& test, std::ostream* out) { *out << test.name; }

template <class T, class... Args>
MakeLayer layer(Args... args) {
  return [=] { return std::make_unique<T>(args...); };
}

std::unique_ptr<Layer> conv_and_norm(std::int64_t in, std::int64_t out, Activation activation) {
  auto net = std::make_unique<Sequential>();
  net->add<Conv2d>("conv", in, out, ConvOptions::square(3, {.pad = 1, .bias = false}))
      .add<BatchNorm2d>("bn", out, BatchNormOptions{.groups = 2, .activation = activation});
  return net;
}

constexpr Activation kRelu{ActivationKind::relu}, kCelu{ActivationKind::celu, 0.3};

std::vector<Case> cases() {
  const Shape image{4, 5, 6, 4};
  return {
      {"Linear", {5, 7}, layer<Linear>(7, 3)},
      {"LinearWithoutBias", {5, 7}, layer<Linear>(7, 3, false)},
      {"LinearOverPositions", {3, 2, 3, 7}, layer<Linear>(7, 3)},
      {"Flatten", {3, 2, 3, 2}, layer<Flatten>()},
      {"Conv", image, layer<Conv2d>(4, 3, ConvOptions{})},
      {"ConvOfOnePixel", image, layer<Conv2d>(4, 3, ConvOptions::square(1, {}))},
      {"ConvWithStridesAndPadding", image,
       layer<Conv2d>(4, 3,
                     ConvOptions{.window = {.kernel_h = 2,
                                            .kernel_w = 3,
                                            .stride_h = 2,
                                            .stride_w = 3,
                                            .pad_w = 1}})},
      {"ConvDilated", image,
       layer<Conv2d>(
           4, 3,
           ConvOptions{.window = {.kernel_h = 3, .kernel_w = 3, .pad_h = 2, .dilation_h = 2}})},
      {"ConvOfGroups", image,
       layer<Conv2d>(
           4, 6, ConvOptions{.window = {.kernel_h = 3, .kernel_w = 3, .pad_h = 1}, .groups = 2})},
      {"ConvDepthwise", image,
       layer<Conv2d>(
           4, 4, ConvOptions{.window = ops::Window::square(3, 1, 1), .groups = 4, .bias = false})},
      {"ConvSame", image,
       layer<Conv2d>(4, 3, ConvOptions{.window = {.kernel_h = 4, .kernel_w = 2}, .same = true})},
      {"ConvFrozen", image, layer<Conv2d>(4, 3, ConvOptions{.frozen = true})},
      {"BatchNorm", image, layer<BatchNorm2d>(4)},
      {"BatchNormOfGhostGroups", image, layer<BatchNorm2d>(4, BatchNormOptions{.groups = 2})},
      {"BatchNormOfFeatures", {6, 4}, layer<BatchNorm2d>(4)},
      {"BatchNormWithFixedScale", image,
       layer<BatchNorm2d>(4, BatchNormOptions{.trainable_scale = false})},
      {"BatchNormWithRelu", image, layer<BatchNorm2d>(4, BatchNormOptions{.activation = kRelu})},
      {"BatchNormWithCelu", image, layer<BatchNorm2d>(4, BatchNormOptions{.activation = kCelu})},
      {"LayerNorm", {5, 6}, layer<LayerNorm>(6)},
      {"LayerNormOverPositions", image, layer<LayerNorm>(4)},
      {"Relu", image, layer<Relu>()},
      {"Celu", image, layer<Celu>(0.3)},
      {"Tanh", image, layer<Smooth>(SmoothKind::tanh)},
      {"Sigmoid", image, layer<Smooth>(SmoothKind::sigmoid)},
      {"Gelu", image, layer<Smooth>(SmoothKind::gelu)},
      {"Silu", image, layer<Smooth>(SmoothKind::silu)},
      {"Scale", image, layer<Scale>(0.125)},
      {"MaxPool", image, layer<Pool2d>(PoolKind::max, 3, 2, 1)},
      {"AveragePool", image, layer<Pool2d>(PoolKind::average, 3, 2, 1)},
      {"GlobalMaximum", image, layer<GlobalPool>(PoolKind::max)},
      {"GlobalAverage", image, layer<GlobalPool>(PoolKind::average)},
      {"GlobalAverageOverPositions", {3, 4, 5}, layer<GlobalPool>(PoolKind::average)},
      {"GlobalMaximumOverPositions", {3, 4, 5}, layer<GlobalPool>(PoolKind::max)},
      {"SelfAttention", {3, 4, 12}, layer<SelfAttention>(4, 1)},
      {"SelfAttentionOfHeads", {2, 5, 18}, layer<SelfAttention>(6, 3)},
      {"SelfAttentionOfOnePosition", {3, 1, 12}, layer<SelfAttention>(4, 2)},
      {"SinusoidalPositions", {3, 4, 5}, layer<SinusoidalPositions>()},
      {"Sequence", image, [] { return conv_and_norm(4, 3, kCelu); }},
      {"ResidualOfIdentity", image,
       [] {
         return std::make_unique<Residual>(conv_and_norm(4, 4, {}), nullptr,
                                           ResidualOptions{.activation = kRelu});
       }},
      {"ResidualOfProjection", image,
       [] {
         return std::make_unique<Residual>(conv_and_norm(4, 3, kCelu), conv_and_norm(4, 3, {}),
                                           ResidualOptions{.activation = kCelu});
       }},
      {"PadShortcut", image, layer<PadShortcut>(4, 8, 2)},
  };
}

/// Distinct values between 0.1 and 1 of both signs in random order: neither an activation nor a
/// maximum over inputs has a kink within 10 steps of them.
Tensor away_from_kinks(Context& ctx, const Shape& shape) {
  Tensor x = Tensor::empty(ctx, shape, DType::f64);
  std::vector<std::int64_t> order(static_cast<std::size_t>(shape.numel()));
  std::iota(order.begin(), order.end(), 0);
  Random random(11);
  random.shuffle(order);
  for (std::size_t i = 0; i < order.size(); ++i)
    x.data<double>()[i] =
        (order[i] % 2 == 0 ? 1 : -1) *
        (0.1 + 0.9 * static_cast<double>(order[i]) / static_cast<double>(order.size()));
  return x;
}

class EveryGradient : public ::testing::TestWithParam<Case> {
 protected:
  GradientCheckResult check(Backend backend, double step) {
    Context ctx(Device::cpu(), {.backend = backend, .threads = 1});
    const auto probe = GetParam().make();
    const Tensor memory = bind_standalone(ctx, *probe, DType::f64, 3);
    return check_gradients(ctx, *probe, away_from_kinks(ctx, GetParam().input),
                           {.step = step, .elements = 1000});
  }
};

TEST_P(EveryGradient, IsThatOfCentralDifferences) {
  for (const Backend backend : {Backend::fast, Backend::reference}) {
    const GradientCheckResult result = check(backend, 1e-5);
    EXPECT_LE(result.worst, kGradientTolerance) << result.where;
    EXPECT_GE(result.checked, GetParam().input.numel());
  }
}

INSTANTIATE_TEST_SUITE_P(Layers, EveryGradient, ::testing::ValuesIn(cases()),
                         [](const auto& test) { return test.param.name; });

/// Forward mode of a layer at a point and along a direction, of its input and its parameters.
class EveryTangent : public ::testing::TestWithParam<Case> {
 protected:
  explicit EveryTangent(Backend backend = Backend::fast)
      : ctx(Device::cpu(), {.backend = backend, .threads = 1}),
        probe(GetParam().make()),
        memory(bind_standalone(ctx, *probe, DType::f64, 3)),
        x(away_from_kinks(ctx, GetParam().input)),
        dx(Tensor::empty(ctx, x.shape(), DType::f64)) {
    Random random(5);
    fill_uniform(dx, -1, 1, random);
    for_parameters([&](Parameter& p) {
      directions.push_back(Tensor::empty(ctx, p.shape, DType::f64));
      fill_uniform(directions.back(), -1, 1, random);
      p.tangent = directions.back();
    });
  }
  void for_parameters(const std::function<void(Parameter&)>& f) {
    probe->visit([&](Layer& part) {
      for (Parameter& p : part.parameters()) f(p);
    });
  }
  /// Output after `step` times the direction; the point stays.
  std::vector<double> moved(double step) {
    const auto move = [&](double by) {
      ops::axpby(ctx, by, dx, 1, x);
      for_parameters([&](Parameter& p) { ops::axpby(ctx, by, p.tangent, 1, p.value); });
    };
    move(step);
    std::vector<double> y = values(ctx, probe->forward(ctx, x, Mode::train));
    move(-step);
    return y;
  }
  /// A tangent that does not move is one of zeros.
  std::vector<double> tangent(ConstTensorView along) {
    const ConstTensorView y = probe->forward(ctx, x, Mode::train);
    const std::size_t count = static_cast<std::size_t>(y.numel());
    const ConstTensorView dy = probe->tangent(ctx, along);
    return dy.empty() ? std::vector<double>(count) : values(ctx, dy);
  }

  Context ctx;
  std::unique_ptr<Layer> probe;
  Tensor memory, x, dx;
  std::vector<Tensor> directions;
};

class EveryTangentOfReference : public EveryTangent {
 protected:
  EveryTangentOfReference() : EveryTangent(Backend::reference) {}
};

double dot_of(const std::vector<double>& a, const std::vector<double>& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

void expect_differences(const std::vector<double>& tangent, std::vector<double> above,
                        const std::vector<double>& below, double step) {
  for (std::size_t i = 0; i < above.size(); ++i) above[i] = (above[i] - below[i]) / (2 * step);
  EXPECT_LE(relative_error(tangent, above), kGradientTolerance);
}

TEST_P(EveryTangent, IsThatOfCentralDifferences) {
  constexpr double kStep = 1e-6;
  expect_differences(tangent(dx), moved(kStep), moved(-kStep), kStep);
}
TEST_P(EveryTangentOfReference, IsThatOfCentralDifferences) {
  constexpr double kStep = 1e-6;
  expect_differences(tangent(dx), moved(kStep), moved(-kStep), kStep);
}

TEST_P(EveryTangent, IsTheTransposeOfTheBackwardPass) {
  const std::vector<double> along = tangent(dx);
  Tensor u = Tensor::empty(ctx, probe->output_shape(x.shape()), DType::f64);
  Random random(7);
  fill_uniform(u, -1, 1, random);
  const double forwards = dot_of(values(ctx, u), along);
  (void)probe->forward(ctx, x, Mode::train);
  double of_input =
      dot_of(values(ctx, dx), values(ctx, probe->backward(ctx, u, InputGrad::needed)));
  double of_parameters = 0;
  for_parameters(
      [&](Parameter& p) { of_parameters += dot_of(values(ctx, p.tangent), values(ctx, p.grad)); });
  // Sums of as many products as there are elements, each near 1, through a few layers.
  const double tolerance = 100 * static_cast<double>(x.numel()) * eps<double>;
  EXPECT_NEAR(forwards, of_input + of_parameters, tolerance);
  EXPECT_GT(std::abs(of_input), 1e-3);  // Neither part is nothing.
  if (memory.numel() > 0 && !directions.empty()) {
    EXPECT_GT(std::abs(of_parameters), 1e-3);
  }
}

TEST_P(EveryTangent, IsTheSumOfThoseOfInputAndParameters) {
  const std::vector<double> both = tangent(dx);
  const std::vector<double> of_parameters = tangent({});
  for_parameters([](Parameter& p) { p.tangent = {}; });
  std::vector<double> sum = tangent(dx);
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += of_parameters[i];
  EXPECT_LE(relative_error(sum, both), 1000 * eps<double>);  // Sums of tens of terms.
  EXPECT_EQ(tangent({}), std::vector<double>(both.size()));
}

INSTANTIATE_TEST_SUITE_P(Layers, EveryTangent, ::testing::ValuesIn(cases()),
                         [](const auto& test) { return test.param.name; });
INSTANTIATE_TEST_SUITE_P(Layers, EveryTangentOfReference, ::testing::ValuesIn(cases()),
                         [](const auto& test) { return test.param.name; });

TEST(EveryGradientControl, ADifferenceAcrossAKinkIsNoGradient) {
  Context ctx;
  Relu relu;
  const double x[] = {1e-6, 1};
  EXPECT_GT(check_gradients(ctx, relu, view_of(x, Shape{1, 2})).worst, 0.1);
}

}  // namespace
}  // namespace dkfac::nn
