#include <cmath>

#include <gtest/gtest.h>

#include "nn/nn_support.h"
#include "nn/shared/fusion.h"

namespace dkfac::nn {
namespace {

using namespace dkfac::testing;

const Activation kRelu{ActivationKind::relu};
const Activation kCelu{ActivationKind::celu, 0.3};

void set_shift(Context& ctx, Standalone<BatchNorm2d>& norm) {
  const TensorView shift = norm->parameters().back().value;
  ops::copy(ctx, random_tensor(ctx, shift.shape(), shift.dtype(), 12), shift);
}

TEST(BatchNormOptions, AFixedScaleIsABufferAndOnlyTheShiftIsTrained) {
  Context ctx;
  Standalone<BatchNorm2d> fixed(ctx, DType::f64, 3,
                                BatchNormOptions{.trainable_scale = false, .initial_scale = 0.7});
  Standalone<BatchNorm2d> trained(ctx, DType::f64, 3, BatchNormOptions{.initial_scale = 0.7});
  ASSERT_EQ(fixed->parameters().size(), 1U);
  EXPECT_EQ(fixed->parameters()[0].name, "bias");
  EXPECT_EQ(fixed->buffers().back().name, "weight");
  EXPECT_EQ(values(ctx, fixed->buffers().back().value), (std::vector<double>{0.7, 0.7, 0.7}));
  EXPECT_EQ(values(ctx, trained.value(0)), (std::vector<double>{0.7, 0.7, 0.7}));
  set_shift(ctx, fixed);
  set_shift(ctx, trained);
  const Tensor x = random_tensor(ctx, Shape{4, 3, 3, 3}, DType::f64, 3);
  const Tensor dy = random_tensor(ctx, x.shape(), DType::f64, 4);
  EXPECT_EQ(values(ctx, fixed->forward(ctx, x, Mode::train)),
            values(ctx, trained->forward(ctx, x, Mode::train)));
  EXPECT_EQ(values(ctx, fixed->backward(ctx, dy, InputGrad::needed)),
            values(ctx, trained->backward(ctx, dy, InputGrad::needed)));
  EXPECT_EQ(values(ctx, fixed.grad(0)), values(ctx, trained.grad(1)));
  EXPECT_EQ(values(ctx, fixed->forward(ctx, x, Mode::eval)),
            values(ctx, trained->forward(ctx, x, Mode::eval)));
  EXPECT_LE(check_gradients(ctx, fixed.layer, x).worst, kGradientTolerance);
}

TEST(BatchNormOptions, ZeroGammaGivesTheShiftAndStillLearnsItsScale) {
  Context ctx;
  Standalone<BatchNorm2d> norm(ctx, DType::f64, 2, BatchNormOptions{.initial_scale = 0});
  set_shift(ctx, norm);
  const auto shift = values(ctx, norm.value(1));
  const Tensor x = random_tensor(ctx, Shape{4, 3, 3, 2}, DType::f64, 3);
  const auto y = values(ctx, norm->forward(ctx, x, Mode::train));
  for (std::size_t i = 0; i < y.size(); ++i) EXPECT_EQ(y[i], shift[i % 2]);
  norm->backward(ctx, random_tensor(ctx, x.shape(), DType::f64, 4), InputGrad::needed);
  EXPECT_NE(values(ctx, norm.grad(0))[0], 0);
}

TEST(BatchNormOptions, ScalesCanStartAtNormalValues) {
  Context ctx;
  constexpr std::int64_t kCount = 4000;
  Standalone<BatchNorm2d> norm(ctx, DType::f64, kCount, BatchNormOptions{.scale_stddev = 0.05});
  double mean = 0, variance = 0;
  for (const double gamma : values(ctx, norm.value(0))) {
    mean += gamma / kCount;
    variance += (gamma - 1) * (gamma - 1) / kCount;
  }
  // Five standard deviations of each; these draws are always the same.
  const double count = kCount;
  EXPECT_NEAR(mean, 1, 5 * 0.05 / std::sqrt(count));
  EXPECT_NEAR(variance, 0.0025, 5 * 0.0025 * std::sqrt(2 / count));
  for (const double beta : values(ctx, norm.value(1))) EXPECT_EQ(beta, 0);
  EXPECT_THROW(BatchNorm2d(2, {.scale_stddev = -1}), InvalidArgument);
  EXPECT_THROW(BatchNorm2d(2, {.trainable_scale = false, .scale_stddev = 0.1}), InvalidArgument);
}

TEST(BatchNormOptions, RefusesValuesThatAreNone) {
  EXPECT_THROW(BatchNorm2d(2, {.initial_scale = INFINITY}), InvalidArgument);
  EXPECT_THROW(BatchNorm2d(2, {.activation = {ActivationKind::celu, 0}}), InvalidArgument);
}

struct OptionCase {
  Activation activation;
  std::int64_t groups;
  Shape shape;
};
class FusedActivation : public ::testing::TestWithParam<OptionCase> {};
INSTANTIATE_TEST_SUITE_P(
    Shapes, FusedActivation,
    ::testing::Values(OptionCase{kRelu, 1, Shape{8, 3, 3, 5}},
                      OptionCase{kRelu, 4, Shape{8, 9, 7, 16}}, OptionCase{kRelu, 2, Shape{6, 70}},
                      OptionCase{kCelu, 1, Shape{8, 3, 3, 5}},
                      OptionCase{kCelu, 4, Shape{8, 9, 7, 16}},
                      OptionCase{kCelu, 2, Shape{4, 3, 3, 130}}),
    [](const auto& param) {
      return std::string(param.param.activation.kind == ActivationKind::relu ? "relu" : "celu") +
             std::to_string(param.param.groups) + "c" +
             std::to_string(param.param.shape[param.param.shape.ndim() - 1]);
    });

/// Outputs, input gradient and parameter gradients of one training step, and the evaluation.
std::vector<std::vector<double>> step(Context& ctx, Layer& layer, BatchNorm2d& norm,
                                      const Tensor& x, const Tensor& dy) {
  std::vector<std::vector<double>> all;
  all.push_back(values(ctx, layer.forward(ctx, x, Mode::train)));
  all.push_back(values(ctx, layer.backward(ctx, dy, InputGrad::needed)));
  for (Parameter& p : norm.parameters()) all.push_back(values(ctx, p.grad));
  all.push_back(values(ctx, layer.forward(ctx, x, Mode::eval)));
  return all;
}

TEST_P(FusedActivation, GivesTheBitsOfTwoLayers) {
  const OptionCase& c = GetParam();
  Context ctx;
  const std::int64_t channels = c.shape[c.shape.ndim() - 1];
  for (const DType dtype : {DType::f64, DType::f32}) {
    Standalone<BatchNorm2d> fused(ctx, dtype, channels,
                                  BatchNormOptions{.groups = c.groups, .activation = c.activation});
    Sequential two;
    two.add<BatchNorm2d>("bn", channels, BatchNormOptions{.groups = c.groups});
    if (c.activation.kind == ActivationKind::relu) two.add<Relu>("act");
    if (c.activation.kind == ActivationKind::celu) two.add<Celu>("act", c.activation.alpha);
    const Tensor memory = bind_standalone(ctx, two, dtype, 5);
    BatchNorm2d* norm = nullptr;
    two.visit([&](Layer& l) { norm = norm ? norm : dynamic_cast<BatchNorm2d*>(&l); });
    for (std::size_t i : {0U, 1U}) {
      ops::copy(ctx, random_tensor(ctx, Shape{channels}, dtype, 12 + i, -1, 2), fused.value(i));
      ops::copy(ctx, fused.value(i), norm->parameters()[i].value);
    }
    const Tensor x = random_tensor(ctx, c.shape, dtype, 3, -1, 3);
    const Tensor dy = random_tensor(ctx, c.shape, dtype, 4);
    EXPECT_EQ(step(ctx, fused.layer, fused.layer, x, dy), step(ctx, two, *norm, x, dy));
  }
}

TEST_P(FusedActivation, GradientsMatchDifferences) {
  const OptionCase& c = GetParam();
  Context ctx;
  Standalone<BatchNorm2d> norm(ctx, DType::f64, c.shape[c.shape.ndim() - 1],
                               BatchNormOptions{.groups = c.groups, .activation = c.activation});
  set_shift(ctx, norm);
  const Tensor x = random_tensor(ctx, c.shape, DType::f64, 3, -1, 3);
  const GradientCheckResult result = check_gradients(ctx, norm.layer, x);
  EXPECT_LE(result.worst, kGradientTolerance) << result.where;
}

/// Keeps the gradient that a BatchNorm passes to its observer.
class GradientKeeper final : public LayerObserver {
 public:
  explicit GradientKeeper(Context& ctx) : ctx_(ctx) {}
  void on_forward(Layer&, ConstTensorView) override {}
  void on_backward(Layer&, ConstTensorView) override {}
  void on_normalization(Layer&, ConstTensorView, ConstTensorView, ConstTensorView,
                        ConstTensorView grad_output) override {
    seen = values(ctx_, grad_output);
  }
  void on_gradients(Layer&) override {}
  [[nodiscard]] bool wants_normalization(const Layer&) const override { return wants; }
  // On the host a layer does not sum by sample, which would move the bits of its gradients.
  [[nodiscard]] bool takes_sample_gradients(const Layer&) const override { return true; }
  std::vector<double> seen;
  bool wants = true;

 private:
  Context& ctx_;
};

TEST(FusedBatchNorm, ShowsTheGradientBeforeItsActivationToTheObserver) {
  Context ctx;
  Standalone<BatchNorm2d> norm(ctx, DType::f32, 5, BatchNormOptions{.activation = kRelu});
  GradientKeeper keeper(ctx);
  norm->set_observer(&keeper);
  const Tensor x = random_tensor(ctx, Shape{4, 3, 3, 5}, DType::f32, 3);
  const Tensor dy = random_tensor(ctx, x.shape(), DType::f32, 4);
  const auto y = values(ctx, norm->forward(ctx, x, Mode::train));
  const auto dx = values(ctx, norm->backward(ctx, dy, InputGrad::needed));
  auto expected = values(ctx, dy);
  for (std::size_t i = 0; i < y.size(); ++i) expected[i] = y[i] > 0 ? expected[i] : 0;
  EXPECT_EQ(keeper.seen, expected);
  EXPECT_NE(keeper.seen, values(ctx, dy));
  // Without an observer it is not stored, and the gradients stay the same.
  keeper.wants = false;
  keeper.seen.clear();
  norm->forward(ctx, x, Mode::train);
  EXPECT_EQ(values(ctx, norm->backward(ctx, dy, InputGrad::needed)), dx);
  EXPECT_TRUE(keeper.seen.empty());
}

TEST(FusedBatchNorm, DescribesItsActivationAndAddsNothingBeforeItsOwn) {
  BatchNorm2d norm(5, {.activation = kCelu});
  EXPECT_EQ(norm.describe(), "BatchNorm2d 5 + CELU 0.3");
  EXPECT_THROW(add_next(norm, {}, kRelu), InvalidArgument);
}

}  // namespace
}  // namespace dkfac::nn
