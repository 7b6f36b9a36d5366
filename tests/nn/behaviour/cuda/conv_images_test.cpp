#include <gtest/gtest.h>

#include "nn/backends/conv_backend.h"
#include "nn/cuda/beside_host.h"
#include "nn/cuda/conv_passes.h"
#include "nn/shared/conv_plans.h"

/// Images of 16 bits, which cuDNN requires to have a multiple of four channels.
namespace dkfac::nn {
namespace {

using namespace dkfac::testing;

class ImagesOnDevice : public ::testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (cuda::make_cudnn_conv() == nullptr) GTEST_SKIP() << "this build has no cuDNN";
    x_ = to_device(ctx, random_on_host(cpu, Shape{2, 6, 6, 3}, GetParam(), 1));
    weight_ = to_device(ctx, random_on_host(cpu, Shape{8, 3, 3, 3}, DType::f32, 2));
    dy_ = to_device(ctx, random_on_host(cpu, Shape{2, 6, 6, 8}, GetParam(), 3));
    dw_ = Tensor::empty(ctx, Shape{8, 3, 3, 3});
    y_ = Tensor::empty(ctx, Shape{2, 6, 6, 8}, GetParam());
  }
  std::vector<double> gradient(ConvBackend& conv, ConstTensorView x) {
    conv.backward_weights(ctx, shape_, x, dy_, dw_, {});
    return device_values(ctx, dw_);
  }
  Context ctx{Device::cuda()}, cpu;
  const ConvShape shape_ = with_outputs({.n = 2,
                                         .h = 6,
                                         .w = 6,
                                         .in = 3,
                                         .out = 8,
                                         .window = ops::Window::square(3, 1, 1),
                                         .bias = false},
                                        GetParam());
  Tensor x_, weight_, dy_, dw_, y_;
};
INSTANTIATE_TEST_SUITE_P(Types, ImagesOnDevice, ::testing::Values(DType::f16, DType::bf16),
                         name_of_dtype);

/// The backward pass uses the copy of the forward pass, which does not change with the image.
TEST_P(ImagesOnDevice, AreWidenedOnceInAStep) {
  const auto conv = cuda::make_cudnn_conv(), fresh = cuda::make_cudnn_conv();
  conv->forward(ctx, shape_, x_, weight_, {}, y_);
  const std::vector<double> expected = gradient(*fresh, x_);
  const Tensor same = to_device(ctx, x_);
  ops::fill(ctx, x_, 7);
  EXPECT_EQ(gradient(*conv, x_), expected);
  EXPECT_EQ(gradient(*conv, same), expected) << "an image elsewhere";
  EXPECT_NE(gradient(*fresh, x_), expected) << "control: the image has changed";
}

TEST_P(ImagesOnDevice, PassThroughTheNextStepAsThroughTheFirst) {
  const auto conv = cuda::make_cudnn_conv(), fresh = cuda::make_cudnn_conv();
  conv->forward(ctx, shape_, x_, weight_, {}, y_);
  (void)gradient(*conv, x_);
  ops::copy(ctx, to_device(ctx, random_on_host(cpu, x_.shape(), GetParam(), 9)), x_);
  conv->forward(ctx, shape_, x_, weight_, {}, y_);
  const std::vector<double> output = device_values(ctx, y_), of_weights = gradient(*conv, x_);
  fresh->forward(ctx, shape_, x_, weight_, {}, y_);
  EXPECT_EQ(device_values(ctx, y_), output);
  EXPECT_EQ(gradient(*fresh, x_), of_weights);
  bool is_wide = false;
  for (const ConvPlan& plan : conv_plans())
    is_wide = is_wide || plan.work.find("[2,6,6,4] -> [2,6,6,8]") != std::string::npos;
  EXPECT_TRUE(is_wide) << describe_conv_plans();
}

}  // namespace
}  // namespace dkfac::nn
