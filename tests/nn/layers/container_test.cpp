#include <gtest/gtest.h>

#include "nn/nn_support.h"

namespace dkfac::nn {
namespace {

using namespace dkfac::testing;

std::unique_ptr<Sequential> small_body(std::int64_t in, std::int64_t out, int stride) {
  auto body = std::make_unique<Sequential>();
  body->add<Conv2d>("conv", in, out,
                    ConvOptions::square(3, {.stride = stride, .pad = 1, .bias = false}))
      .add<BatchNorm2d>("bn", out);
  return body;
}

TEST(Sequential, GradientsMatchDifferences) {
  Context ctx;
  Sequential net;
  net.add<Conv2d>("conv", 2, 3, ConvOptions::square(3, {.pad = 1}))
      .add<BatchNorm2d>("bn", 3, BatchNormOptions{.groups = 2})
      .add<Pool2d>("pool", PoolKind::average, 2, 2)
      .add<Flatten>("flatten")
      .add<Linear>("fc", 12, 4);
  const Tensor memory = bind_standalone(ctx, net, DType::f64, 1);
  const Tensor x = random_tensor(ctx, Shape{4, 4, 4, 2}, DType::f64, 1);
  const GradientCheckResult result = check_gradients(ctx, net, x);
  EXPECT_LE(result.worst, kGradientTolerance) << result.where;
}

TEST(Sequential, NamesItsChildrenByPathOrIndex) {
  Sequential net;
  auto inner = std::make_unique<Sequential>();
  inner->add<Relu>("");
  net.add<Relu>("first").add("block", std::move(inner));
  net.set_name("net");
  std::vector<std::string> names;
  net.visit([&](Layer& layer) { names.push_back(layer.name()); });
  EXPECT_EQ(names, (std::vector<std::string>{"net", "net.first", "net.block", "net.block.0"}));
}

TEST(Sequential, RefusesTwoChildrenOfOneNameAndNull) {
  Sequential net;
  net.add<Relu>("a");
  EXPECT_THROW(net.add<Relu>("a"), InvalidArgument);
  EXPECT_THROW(net.add("b", nullptr), InvalidArgument);
}

/// Records whether an input gradient was requested.
class Asked final : public Layer {
 public:
  explicit Asked(bool trained) {
    if (trained) parameters_.push_back({"bias", Role::bias, Shape{1}, {}, {}});
  }
  [[nodiscard]] std::string describe() const override { return "Asked"; }
  [[nodiscard]] Shape output_shape(const Shape& input) const override { return input; }
  ConstTensorView forward(Context&, ConstTensorView x, Mode) override { return x; }
  ConstTensorView backward(Context&, ConstTensorView dy, InputGrad need) override {
    asked.push_back(need);
    return need == InputGrad::needed ? dy : ConstTensorView{};
  }
  std::vector<InputGrad> asked;
};

TEST(Sequential, SkipsTheInputGradientsOfAllBeforeWhatIsTrained) {
  Context ctx;
  Sequential net;
  auto before = std::make_unique<Asked>(false), trained = std::make_unique<Asked>(true),
       behind = std::make_unique<Asked>(false);
  const Asked &a = *before, &b = *trained, &c = *behind;
  net.add<Flatten>("flatten").add("a", std::move(before));
  EXPECT_EQ(net.first_trained(), 2U);
  net.add("b", std::move(trained)).add("c", std::move(behind));
  EXPECT_EQ(net.first_trained(), 2U);
  const Tensor memory = bind_standalone(ctx, net, DType::f64, 1);
  const Tensor x = Tensor::zeros(ctx, Shape{2, 3, 1}, DType::f64);
  const Tensor dy = Tensor::zeros(ctx, Shape{2, 3}, DType::f64);
  net.forward(ctx, x, Mode::train);
  EXPECT_TRUE(net.backward(ctx, dy, InputGrad::skipped).empty());
  EXPECT_TRUE(a.asked.empty());
  EXPECT_EQ(b.asked, std::vector{InputGrad::skipped});
  EXPECT_EQ(c.asked, std::vector{InputGrad::needed});
  EXPECT_EQ(net.backward(ctx, dy, InputGrad::needed).shape(), x.shape());
  EXPECT_EQ(a.asked, std::vector{InputGrad::needed});
}

TEST(Sequential, SkipsTheInputGradientOfItsFirstLayerOnly) {
  Context ctx;
  Sequential net;
  net.add<Linear>("a", 3, 4).add<Linear>("b", 4, 2);
  const Tensor memory = bind_standalone(ctx, net, DType::f64, 1);
  const Tensor x = random_tensor(ctx, Shape{2, 3}, DType::f64, 1);
  const Tensor dy = random_tensor(ctx, Shape{2, 2}, DType::f64, 2);
  const auto gradients = [&](InputGrad need) {
    net.forward(ctx, x, Mode::train);
    EXPECT_EQ(net.backward(ctx, dy, need).empty(), need == InputGrad::skipped);
    std::vector<double> all;
    net.visit([&](Layer& layer) {
      for (Parameter& p : layer.parameters()) {
        for (const double g : values(ctx, p.grad)) all.push_back(g);
      }
    });
    return all;
  };
  EXPECT_EQ(gradients(InputGrad::skipped), gradients(InputGrad::needed));
}

TEST(Residual, GradientsMatchDifferencesWithTheIdentity) {
  Context ctx;
  Residual block(small_body(3, 3, 1));
  const Tensor memory = bind_standalone(ctx, block, DType::f64, 1);
  const Tensor x = random_tensor(ctx, Shape{2, 4, 5, 3}, DType::f64, 1);
  const GradientCheckResult result = check_gradients(ctx, block, x);
  EXPECT_LE(result.worst, kGradientTolerance) << result.where;
}

TEST(Residual, GradientsMatchDifferencesWithAShortcut) {
  Context ctx;
  Residual block(small_body(3, 5, 2), small_body(3, 5, 2));
  const Tensor memory = bind_standalone(ctx, block, DType::f64, 1);
  const Tensor x = random_tensor(ctx, Shape{2, 6, 5, 3}, DType::f64, 1);
  const GradientCheckResult result = check_gradients(ctx, block, x);
  EXPECT_LE(result.worst, kGradientTolerance) << result.where;
  EXPECT_EQ(result.checked, 40 + 2 * (40 + 5 + 5));  // input, two kernels, scales and shifts
}

TEST(Residual, AddsTheShortcut) {
  Context ctx;
  auto body = std::make_unique<Linear>(2, 2, false);
  Linear& linear = *body;
  Residual block(std::move(body));
  const Tensor memory = bind_standalone(ctx, block, DType::f64, 1);
  const double weight[] = {0, 1, 2, 0}, x[] = {3, 5};
  ops::copy(ctx, view_of(weight, Shape{2, 2}), linear.parameters()[0].value);
  EXPECT_EQ(values(ctx, block.forward(ctx, view_of(x, Shape{1, 2}), Mode::train)),
            (std::vector<double>{8, 11}));
}

TEST(Residual, NamesTheLayerAndBothShapesWhenTheBranchesDiffer) {
  Context ctx;
  Residual block(small_body(3, 5, 1));
  block.set_name("probe");
  const std::string message = message_of([&] { (void)block.output_shape(Shape{2, 4, 4, 3}); });
  EXPECT_TRUE(contains(message, "[residual] 'probe'"));
  EXPECT_TRUE(contains(message, "[2, 4, 4, 5]"));
  EXPECT_TRUE(contains(message, "[2, 4, 4, 3]"));
  EXPECT_THROW(Residual(nullptr), InvalidArgument);
}

}  // namespace
}  // namespace dkfac::nn
