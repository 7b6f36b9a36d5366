#include <memory>

#include <gtest/gtest.h>

#include "nn/models/models.h"
#include "nn/nn_support.h"

/// Memory and operations that layers report for their passes.
namespace dkfac::nn {
namespace {

using namespace dkfac::testing;

PassPlan plan_model(const ModelOptions& options, Mode mode) {
  const Shape& image = options.input;
  return plan_passes(*make_layers(options), Shape{1, image[0], image[1], image[2]}, mode,
                     DType::f32);
}

/// Multiply-adds of each layer, from the shapes in LeCun et al. 1998.
TEST(PassPlan, CountsTheOperationsOfLeNet) {
  constexpr double kConv1 = 28 * 28 * 6 * 25, kConv2 = 10 * 10 * 16 * 150;
  constexpr double kDense = 400 * 120 + 120 * 84 + 84 * 10;
  const ModelOptions lenet{.name = "lenet-bn", .input = {28, 28, 1}};
  EXPECT_EQ(plan_model(lenet, Mode::eval).flops, 2 * (kConv1 + kConv2 + kDense));
  // Gradients of weights and of inputs, but not of the images.
  EXPECT_EQ(plan_model(lenet, Mode::train).flops, 2 * (2 * kConv1 + 3 * (kConv2 + kDense)));
}

/// 4.09e9 multiply-adds are well known of it.
TEST(PassPlan, CountsTheOperationsOfResNet50) {
  const ModelOptions resnet{.name = "resnet50", .input = {224, 224, 3}, .classes = 1000};
  const double forward = plan_model(resnet, Mode::eval).flops;
  EXPECT_NEAR(forward / 2e9, 4.089, 5e-4);
  constexpr double kStem = 2.0 * 112 * 112 * 64 * 7 * 7 * 3;
  EXPECT_EQ(plan_model(resnet, Mode::train).flops, 3 * forward - kStem);
}

/// Layers before the first trained one have no backward computation.
TEST(PassPlan, CountsNoOperationsThatAPassLeavesOut) {
  ConvOptions frozen = ConvOptions::square(3, {.bias = false}),
              grouped = ConvOptions::square(1, {});
  frozen.frozen = true;
  grouped.groups = 2;
  Sequential net;
  net.add<Conv2d>("frozen", 1, 2, frozen)
      .add<Conv2d>("first", 2, 4, grouped)
      .add<Conv2d>("second", 4, 4, grouped);
  const Shape input{5, 4, 4, 1};
  const double outputs = 5 * 2 * 2;
  const double filters = 2 * outputs * 2 * 9, first = 2 * outputs * 4 * 1,
               second = 2 * outputs * 4 * 2;
  EXPECT_EQ(plan_passes(net, input, Mode::eval, DType::f32).flops, filters + first + second);
  EXPECT_EQ(plan_passes(net, input, Mode::train, DType::f32).flops,
            filters + 2 * first + 3 * second);
}

TEST(LayerCost, OfAFrozenConvolutionIsWithoutTheGradientOfItsWeight) {
  ConvOptions options = ConvOptions::square(3, {.pad = 1, .bias = false});
  const LayerCost trained = Conv2d(2, 3, options).cost(Shape{1, 4, 4, 2}, DType::bf16);
  options.frozen = true;
  const LayerCost frozen = Conv2d(2, 3, options).cost(Shape{1, 4, 4, 2}, DType::bf16);
  EXPECT_EQ(trained.parameter_flops, 2.0 * 16 * 3 * 18);
  EXPECT_EQ(frozen.parameter_flops, 0);
  EXPECT_EQ(frozen.input_flops, trained.input_flops);
  EXPECT_EQ(frozen.reordered, 2U * 3 * 18 * 2);
}

TEST(LayerCost, OfAttentionHasTwoProductsForwardAndFourBackward) {
  const LayerCost cost = SelfAttention(6, 2).cost(Shape{3, 5, 18}, DType::f32);
  EXPECT_EQ(cost.forward_flops, 2 * 2.0 * 3 * 5 * 5 * 6);
  EXPECT_EQ(cost.input_flops, 4 * 2.0 * 3 * 5 * 5 * 6);
  EXPECT_EQ(cost.kept, 3U * 2 * 5 * 5 * 4);
}

/// A kind of layer that is not in the library.
class Costly final : public Layer {
 public:
  explicit Costly(LayerCost cost) : cost_(cost) {}
  [[nodiscard]] std::string describe() const override { return "Costly"; }
  [[nodiscard]] Shape output_shape(const Shape& input) const override { return input; }
  ConstTensorView forward(Context&, ConstTensorView x, Mode) override { return x; }
  ConstTensorView backward(Context&, ConstTensorView dy, InputGrad) override { return dy; }
  [[nodiscard]] LayerCost cost(const Shape& input, DType) const override {
    LayerCost whole = cost_;
    whole.kept *= static_cast<std::size_t>(input.numel());
    return whole;
  }

 private:
  LayerCost cost_;
};

TEST(PassPlan, AsksLayersOfAnyKind) {
  Sequential net;
  net.add<Costly>("a", LayerCost{.forward_flops = 1,
                                 .parameter_flops = 10,
                                 .input_flops = 100,
                                 .kept = 2,
                                 .statistics = 3,
                                 .scratch = 5,
                                 .reordered = 7});
  net.add<Costly>("b",
                  LayerCost{.input_flops = 1000, .statistics = 1, .scratch = 4, .reordered = 1});
  const Shape shape{4, 8};
  const std::size_t output = 4 * 8 * 2;  // In 16 bits.
  PassPlan train{.mode = Mode::train, .compute = DType::bf16};
  net.plan_forward(train, shape);
  EXPECT_EQ(train.activations, 2 * output + 2 * 4 * 8);
  EXPECT_EQ(train.workspace, 0U);
  EXPECT_EQ(train.statistics, 4U);
  EXPECT_EQ(train.scratch, 5U) << "the largest";
  EXPECT_EQ(train.reordered, 8U) << "the sum";
  net.plan_backward(train, shape, InputGrad::needed);
  EXPECT_EQ(train.flops, 1 + 10 + 100 + 1000);
  EXPECT_EQ(train.workspace, 2 * output);
  EXPECT_EQ(train.lent, output) << "the gradient of the input";

  const PassPlan eval = plan_passes(net, shape, Mode::eval, DType::bf16);
  EXPECT_EQ(eval.activations, 2U * 4 * 8);
  EXPECT_EQ(eval.workspace, 2 * output);
  EXPECT_EQ(eval.statistics, 0U);
  EXPECT_EQ(eval.flops, 1);
}

TEST(PassPlan, TakesNothingForViews) {
  for (const bool is_view : {true, false}) {
    Sequential net;
    net.add<Costly>("only", LayerCost{.is_view = is_view});
    PassPlan plan{.mode = Mode::train, .compute = DType::f32};
    EXPECT_EQ(net.plan_forward(plan, Shape{2, 3}), !is_view);
    EXPECT_EQ(net.plan_backward(plan, Shape{2, 3}, InputGrad::needed), !is_view);
    EXPECT_EQ(plan.activations + plan.workspace, is_view ? 0U : 2U * 2 * 3 * 4);
  }
}

}  // namespace
}  // namespace dkfac::nn
