#include <gtest/gtest.h>

#include "nn/nn_support.h"

namespace dkfac::nn {
namespace {

using namespace dkfac::testing;

const Activation kNone{};
const Activation kJoinRelu{ActivationKind::relu};
const Activation kJoinCelu{ActivationKind::celu, 0.3};

/// conv-bn; unless `fusible`, a factor of 1 follows, which keeps the block from fusing the
/// BatchNorm.
std::unique_ptr<Sequential> conv_norm(std::int64_t in, std::int64_t out, std::int64_t groups,
                                      bool fusible) {
  auto body = std::make_unique<Sequential>();
  body->add<Conv2d>("conv", in, out, ConvOptions::square(3, {.pad = 1, .bias = false}))
      .add<BatchNorm2d>("bn", out, BatchNormOptions{.groups = groups});
  if (!fusible) body->add<Scale>("one", 1.0);
  return body;
}

struct JoinCase {
  std::string name;
  Activation activation;
  bool shortcut;
  std::int64_t groups;
};
class Block : public ::testing::TestWithParam<JoinCase> {};
INSTANTIATE_TEST_SUITE_P(Kinds, Block,
                         ::testing::Values(JoinCase{"plain", kNone, false, 1},
                                           JoinCase{"relu", kJoinRelu, false, 1},
                                           JoinCase{"relu_shortcut", kJoinRelu, true, 2},
                                           JoinCase{"celu", kJoinCelu, false, 2},
                                           JoinCase{"celu_shortcut", kJoinCelu, true, 1},
                                           JoinCase{"plain_shortcut", kNone, true, 2}),
                         [](const auto& param) { return param.param.name; });

std::unique_ptr<Residual> block(const JoinCase& c, bool fusible) {
  const std::int64_t out = c.shortcut ? 5 : 3;
  return std::make_unique<Residual>(conv_norm(3, out, c.groups, fusible),
                                    c.shortcut ? conv_norm(3, out, c.groups, true) : nullptr,
                                    ResidualOptions{.activation = c.activation});
}

std::vector<std::vector<double>> step(Context& ctx, const JoinCase& c, bool fusible, DType dtype) {
  const auto net = block(c, fusible);
  const Tensor memory = bind_standalone(ctx, *net, dtype, 5);
  // Values by name: the layers of the two kinds are not numbered alike.
  std::uint64_t seed = 20;
  net->visit([&](Layer& layer) {
    for (Parameter& p : layer.parameters()) {
      ops::copy(ctx, random_tensor(ctx, p.shape, dtype, ++seed), p.value);
    }
  });
  const Tensor x = random_tensor(ctx, Shape{4, 5, 4, 3}, dtype, 1);
  const Tensor dy = random_tensor(ctx, net->output_shape(x.shape()), dtype, 2);
  std::vector<std::vector<double>> all;
  all.push_back(values(ctx, net->forward(ctx, x, Mode::train)));
  all.push_back(values(ctx, net->backward(ctx, dy, InputGrad::needed)));
  net->visit([&](Layer& layer) {
    for (Parameter& p : layer.parameters()) all.push_back(values(ctx, p.grad));
  });
  all.push_back(values(ctx, net->forward(ctx, x, Mode::eval)));
  return all;
}

TEST_P(Block, OnePassGivesTheBitsOfThree) {
  Context ctx;
  for (const DType dtype : {DType::f64, DType::f32}) {
    EXPECT_EQ(step(ctx, GetParam(), true, dtype), step(ctx, GetParam(), false, dtype));
  }
}

TEST_P(Block, GradientsMatchDifferences) {
  Context ctx;
  for (const bool fusible : {true, false}) {
    const auto net = block(GetParam(), fusible);
    const Tensor memory = bind_standalone(ctx, *net, DType::f64, 1);
    const Tensor x = random_tensor(ctx, Shape{4, 5, 4, 3}, DType::f64, 1);
    const GradientCheckResult result = check_gradients(ctx, *net, x);
    EXPECT_LE(result.worst, kGradientTolerance) << result.where << ' ' << fusible;
  }
}

TEST(Residual, AppliesItsActivationToTheSum) {
  Context ctx;
  auto body = std::make_unique<Linear>(2, 2, false);
  Linear& linear = *body;
  Residual net(std::move(body), nullptr, {.activation = kJoinRelu});
  const Tensor memory = bind_standalone(ctx, net, DType::f64, 1);
  const double weight[] = {0, 1, -2, 0}, x[] = {3, 5}, dy[] = {7, 11};
  ops::copy(ctx, view_of(weight, Shape{2, 2}), linear.parameters()[0].value);
  EXPECT_EQ(values(ctx, net.forward(ctx, view_of(x, Shape{1, 2}), Mode::train)),
            (std::vector<double>{8, 0}));  // 5 + 3, -6 + 5
  EXPECT_EQ(values(ctx, net.backward(ctx, view_of(dy, Shape{1, 2}), InputGrad::needed)),
            (std::vector<double>{7, 7}));  // (7, 0) + W'(7, 0)
  EXPECT_EQ(net.describe(), "Residual + ReLU");
}

TEST(Residual, NamesItsBranchesAsSpecified) {
  Residual net(conv_norm(3, 5, 1, true), conv_norm(3, 5, 1, true),
               {.body = "", .shortcut = "downsample"});
  net.set_name("layer1.0");
  std::vector<std::string> names;
  net.visit([&](Layer& layer) { names.push_back(layer.name()); });
  EXPECT_EQ(names, (std::vector<std::string>{"layer1.0", "layer1.0", "layer1.0.conv", "layer1.0.bn",
                                             "layer1.0.downsample", "layer1.0.downsample.conv",
                                             "layer1.0.downsample.bn"}));
}

TEST(Residual, NeedsATrainingPassBeforeBackward) {
  Context ctx;
  const auto net = block({"", kJoinRelu, false, 1}, true);
  const Tensor memory = bind_standalone(ctx, *net, DType::f64, 1);
  const Tensor x = random_tensor(ctx, Shape{4, 5, 4, 3}, DType::f64, 1);
  EXPECT_THROW(net->backward(ctx, x, InputGrad::needed), InvalidArgument);
  net->forward(ctx, x, Mode::eval);
  EXPECT_THROW(net->backward(ctx, x, InputGrad::needed), InvalidArgument);
}

}  // namespace
}  // namespace dkfac::nn
