#include "nn/backends/cuda/cudnn/split_sum.h"

#include <string>

#include <gtest/gtest.h>

#include "nn/cuda/conv_cases.h"
#include "nn/shared/conv_plans.h"
#include "support/on_device.h"

namespace dkfac::nn::cudnn {
namespace {

using namespace dkfac::testing;

ConvWork gradient(std::int64_t in, std::int64_t out, int kernel, std::int64_t side,
                  std::int64_t images = 256, DType dtype = DType::f16) {
  ConvShape s{.n = images, .h = side, .w = side, .in = in, .out = out};
  s.window = ops::Window::square(kernel, 1, kernel / 2);
  s.bias = false;
  return {.shape = with_outputs(s, dtype), .work = Work::weights};
}

TEST(SplitSum, HasAsManySlicesAsMakeItsTilesOneWave) {
  // Tiles of 128x128 in ResNet-50: 1x5 of 64 by 576, 2x18, 4x36.
  EXPECT_EQ(slices_of_sum(gradient(64, 64, 3, 56), 132), 26);
  EXPECT_EQ(slices_of_sum(gradient(256, 256, 3, 14), 132), 3);
  EXPECT_EQ(slices_of_sum(gradient(512, 512, 3, 7), 132), 1) << "tiles are enough";
  EXPECT_EQ(slices_of_sum(gradient(4, 64, 7, 112), 132), 66);
  EXPECT_EQ(slices_of_sum(gradient(4, 64, 7, 112), 1), 1);
  EXPECT_EQ(slices_of_sum(gradient(8, 8, 3, 56), 1000), 128) << "what the engine allows";
  EXPECT_EQ(slices_of_sum(gradient(8, 8, 3, 4, 4), 132), 2) << "64 terms";
}

TEST(SplitSum, IsOfGradientsInF32OfOtherTypesAlone) {
  ConvWork work = gradient(64, 64, 3, 56);
  work.shape.groups = 2;
  EXPECT_EQ(slices_of_sum(work, 132), 1);
  EXPECT_EQ(slices_of_sum(gradient(64, 64, 3, 56, 256, DType::f32), 132), 1);
  work = gradient(64, 64, 3, 56);
  for (const Work other : {Work::forward, Work::data, Work::weights_rounded}) {
    work.work = other;
    EXPECT_EQ(slices_of_sum(work, 132), 1) << name_of(other);
  }
}

/// Gradients of ones by ones, in shapes that no other test has, by the emulated device of 4
/// multiprocessors.
class SplitSumOnDevice : public ::testing::Test {
 protected:
  void TearDown() override { set_conv_plan_options(before_); }
  ConvPlan plan_for(std::int64_t images, std::int64_t in = 8) {
    const ConvWork work = gradient(in, 16, 3, 9, images);
    const ConvShape& s = work.shape;
    Context ctx(Device::cuda());
    Tensor x = Tensor::empty(ctx, Shape{s.n, s.h, s.w, s.in}, s.dtype);
    Tensor dy = Tensor::empty(ctx, Shape{s.n, s.out_h, s.out_w, s.out}, s.dtype);
    Tensor dw = Tensor::empty(ctx, Shape{s.out, 3, 3, s.in});
    ops::fill(ctx, x, 1);
    ops::fill(ctx, dy, 1);
    cuda::make_cudnn_conv()->backward_weights(ctx, s, x, dy, dw, {});
    const std::vector<double> all = device_values(ctx, dw);
    for (std::size_t i = 0; i < all.size(); ++i) {
      const std::size_t tap = i / static_cast<std::size_t>(in) % 9;  // Corners see 8x8 pixels.
      const double pixels = tap == 4 ? 81 : tap % 2 == 1 ? 72 : 64;
      EXPECT_EQ(all[i], pixels * static_cast<double>(images)) << i;
    }
    ConvPlan last;
    for (const ConvPlan& plan : conv_plans())
      if (plan.work == work.text()) last = plan;
    return last;
  }
  static std::int64_t bytes(std::int64_t in) { return 16 * 9 * in * 4; }

 private:
  ConvPlanOptions before_ = conv_plan_options();
};

TEST_F(SplitSumOnDevice, ReplacesAProposalThatDoesNotDivideIt) {
  EXPECT_EQ(plan_for(61).workspace, 4 * bytes(8));
  EXPECT_NE(plan_for(62, 32).engine, 1) << "3 tiles occupy 4 multiprocessors undivided";
}

TEST_F(SplitSumOnDevice, LeavesTheProposalWhereItIsRefused) {
  set_conv_plan_options({.workspace = 4 * bytes(8) - 1});
  const ConvPlan plan = plan_for(63);
  EXPECT_TRUE(plan.possible);
  EXPECT_NE(plan.engine, 1);
}

TEST_F(SplitSumOnDevice, IsTimedBesideTheProposals) {
  set_conv_plan_options({.measured = true});
  const ConvPlan plan = plan_for(64);
  EXPECT_TRUE(plan.possible);  // Whichever was faster.
  EXPECT_GT(plan.seconds, 0);
}

}  // namespace
}  // namespace dkfac::nn::cudnn
