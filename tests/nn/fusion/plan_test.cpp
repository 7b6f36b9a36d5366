#include "nn/fusion/plan.h"

#include <memory>

#include <gtest/gtest.h>

#include "nn/fusion/state.h"
#include "nn/nn_support.h"
#include "nn/residual_net.h"

/// Which layers share a pass over memory; that their results are unchanged is tested on a device.
namespace dkfac::nn {
namespace {

using namespace dkfac::testing;

const ConvOptions kPoint = ConvOptions::square(1, {.bias = false});
const BatchNormOptions kWithRelu{.activation = {ActivationKind::relu}};

std::unique_ptr<Sequential> alone(std::unique_ptr<Layer> layer) {
  auto sequence = std::make_unique<Sequential>();
  sequence->add("", std::move(layer));
  return sequence;
}

TEST(FusionPlan, FindsNeighboursWithinBlocks) {
  Context ctx;
  const auto model = residual_net(ctx, DType::f32, {});
  EXPECT_EQ(model->fused_moments().pairs, 6);   // One a convolution.
  EXPECT_EQ(model->fused_backward().pairs, 2);  // The first BatchNorm of each block.
}

/// The gradient goes through the ends of Sequentials, the moments do not.
TEST(FusionPlan, LooksIntoSequentialsForTheGradientAlone) {
  Sequential net;
  net.add("norm", alone(std::make_unique<BatchNorm2d>(4, kWithRelu)))
      .add("conv", alone(alone(std::make_unique<Conv2d>(4, 4, kPoint))))
      .add("next", alone(std::make_unique<BatchNorm2d>(4)));
  EXPECT_EQ(fused_pairs(net, Fusion::gradient).pairs, 1);
  EXPECT_EQ(fused_pairs(net, Fusion::moments).pairs, 0);
}

TEST(FusionPlan, FindsNothingBehindOrBeforeAnEmptySequential) {
  Sequential net;
  net.add<BatchNorm2d>("norm", 4, kWithRelu).add<Sequential>("none").add<Conv2d>("c", 4, 4, kPoint);
  for (const Fusion what : {Fusion::gradient, Fusion::moments})
    EXPECT_EQ(fused_pairs(net, what).pairs, 0);
}

TEST(FusionPlan, ConnectsAndParts) {
  Sequential net;
  auto conv = std::make_unique<Conv2d>(4, 4, kPoint);
  auto norm = std::make_unique<BatchNorm2d>(4);
  ConvFusion& of_conv = fusion_of(*conv);
  NormFusion& of_norm = fusion_of(*norm);
  net.add("conv", std::move(conv)).add("norm", std::move(norm));
  EXPECT_EQ(of_conv.moments.norm, nullptr);
  fuse(net, Fusion::moments, FusionUse::on);
  EXPECT_EQ(of_conv.moments.norm, &of_norm);
  EXPECT_EQ(of_conv.gradient.norm, nullptr);
  fuse(net, Fusion::moments, FusionUse::off);
  EXPECT_EQ(of_conv.moments.norm, nullptr);
}

TEST(FusionPlan, SumsABlockInItsLastNormalisationOnlyIfThatIsFree) {
  const auto summing = [](std::unique_ptr<Layer> body) {
    return fusion_of(Residual(std::move(body))) != nullptr;
  };
  EXPECT_TRUE(summing(std::make_unique<BatchNorm2d>(4)));
  EXPECT_TRUE(summing(alone(alone(std::make_unique<BatchNorm2d>(4)))));
  EXPECT_FALSE(summing(std::make_unique<BatchNorm2d>(4, kWithRelu)));
  EXPECT_FALSE(summing(alone(std::make_unique<Relu>())));
  EXPECT_FALSE(summing(std::make_unique<Sequential>()));
}

}  // namespace
}  // namespace dkfac::nn
