#include "dkfac/nn/gradient_check.h"

#include <gtest/gtest.h>

#include "nn/nn_support.h"

namespace dkfac::nn {
namespace {

using namespace dkfac::testing;

enum class Mistake { none, input, parameter, nan };

/// y = x * w elementwise with one weight, and a backward pass that can be wrong on purpose.
class Scale final : public Layer {
 public:
  explicit Scale(Mistake mistake) : mistake_(mistake) {
    parameters_.push_back({"w", Role::weight, Shape{1}, {}, {}});
  }
  [[nodiscard]] std::string describe() const override { return "Scale"; }
  [[nodiscard]] Shape output_shape(const Shape& input) const override { return input; }
  ConstTensorView forward(Context& ctx, ConstTensorView x, Mode) override {
    input_ = x;
    const TensorView y = ensure(ctx, output_, x.shape(), x.dtype());
    ops::axpby(ctx, *parameters_[0].value.data<double>(), x, 0.0, y);
    return y;
  }
  ConstTensorView backward(Context& ctx, ConstTensorView dy, InputGrad) override {
    const TensorView dx = ensure(ctx, input_grad_, dy.shape(), dy.dtype());
    ops::axpby(ctx, *parameters_[0].value.data<double>(), dy, 0.0, dx);
    ops::dot(ctx, input_, dy, parameters_[0].grad);
    if (mistake_ == Mistake::input) dx.data<double>()[3] *= 1 + 1e-5;
    if (mistake_ == Mistake::parameter) *parameters_[0].grad.data<double>() += 1e-5;
    if (mistake_ == Mistake::nan) dx.data<double>()[1] = std::nan("");
    return dx;
  }

 private:
  Mistake mistake_;
  ConstTensorView input_;
  Tensor output_, input_grad_;
};

GradientCheckResult check(Mistake mistake) {
  Context ctx;
  Scale layer(mistake);
  const Tensor memory = bind_standalone(ctx, layer, DType::f64, 1);
  ops::fill(ctx, layer.parameters()[0].value, 1.5);
  const Tensor x = random_tensor(ctx, Shape{2, 3}, DType::f64, 1, 1, 2);
  return check_gradients(ctx, layer, x);
}

TEST(GradientCheck, AcceptsARightGradient) {
  const GradientCheckResult result = check(Mistake::none);
  EXPECT_LE(result.worst, 1e-9);
  EXPECT_EQ(result.checked, 7);
}

TEST(GradientCheck, FindsAWrongInputGradient) {
  const GradientCheckResult result = check(Mistake::input);
  EXPECT_GT(result.worst, kGradientTolerance);
  EXPECT_EQ(result.where, "input[3]");
}

TEST(GradientCheck, FindsAWrongParameterGradient) {
  const GradientCheckResult result = check(Mistake::parameter);
  EXPECT_GT(result.worst, kGradientTolerance);
  EXPECT_EQ(result.where, "w[0]");
}

TEST(GradientCheck, TreatsNanAsTheWorst) {
  const GradientCheckResult result = check(Mistake::nan);
  EXPECT_EQ(result.worst, std::numeric_limits<double>::infinity());
  EXPECT_EQ(result.where, "input[1]");
}

TEST(GradientCheck, ProbesAsManyElementsAsAsked) {
  Context ctx;
  Standalone<Linear> fc(ctx, DType::f64, 30, 20);
  const Tensor x = random_tensor(ctx, Shape{5, 30}, DType::f64, 1);
  EXPECT_EQ(check_gradients(ctx, fc.layer, x, {.elements = 10}).checked, 30);
  EXPECT_EQ(check_gradients(ctx, fc.layer, x, {.elements = 10000}).checked, 150 + 600 + 20);
}

TEST(GradientCheck, RestoresTheParametersAndLeavesTheInputAlone) {
  Context ctx;
  Standalone<Linear> fc(ctx, DType::f64, 3, 2);
  const Tensor x = random_tensor(ctx, Shape{5, 3}, DType::f64, 1);
  const auto weights = values(ctx, fc.value(0)), input = values(ctx, x);
  (void)check_gradients(ctx, fc.layer, x);
  EXPECT_EQ(values(ctx, fc.value(0)), weights);
  EXPECT_EQ(values(ctx, x), input);
}

TEST(GradientCheck, RefusesSinglePrecisionAndEmptyOptions) {
  Context ctx;
  Relu relu;
  const Tensor x32 = Tensor::zeros(ctx, Shape{2, 2}),
               x = Tensor::zeros(ctx, Shape{2, 2}, DType::f64);
  EXPECT_THROW((void)check_gradients(ctx, relu, x32), InvalidArgument);
  EXPECT_THROW((void)check_gradients(ctx, relu, x, {.step = 0}), InvalidArgument);
  EXPECT_THROW((void)check_gradients(ctx, relu, x, {.elements = 0}), InvalidArgument);
}

TEST(Initialization, DrawsHeNormalWeightsAndConstantsForTheRest) {
  Context ctx;
  Standalone<Conv2d> conv(ctx, DType::f64, 20, 50, ConvOptions{});
  const auto w = values(ctx, conv.value(0));
  double mean = 0, square = 0;
  for (const double e : w) {
    mean += e / static_cast<double>(w.size());
    square += e * e / static_cast<double>(w.size());
  }
  // 9000 draws of variance 2 / 180: five standard errors.
  EXPECT_NEAR(mean, 0, 5 * std::sqrt(2.0 / 180 / 9000));
  EXPECT_NEAR(square, 2.0 / 180, 5 * 2.0 / 180 * std::sqrt(2.0 / 9000));
  EXPECT_EQ(values(ctx, conv.value(1)), std::vector<double>(50, 0.0));
  Standalone<BatchNorm2d> norm(ctx, DType::f64, 3);
  EXPECT_EQ(values(ctx, norm.value(0)), std::vector<double>(3, 1.0));
  EXPECT_EQ(values(ctx, norm.value(1)), std::vector<double>(3, 0.0));
  EXPECT_EQ(values(ctx, norm->buffers()[0].value), std::vector<double>(3, 0.0));
  EXPECT_EQ(values(ctx, norm->buffers()[1].value), std::vector<double>(3, 1.0));
}

}  // namespace
}  // namespace dkfac::nn
