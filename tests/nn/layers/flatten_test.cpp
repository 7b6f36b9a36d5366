#include <gtest/gtest.h>

#include "nn/nn_support.h"

namespace dkfac::nn {
namespace {

using namespace dkfac::testing;

TEST(Flatten, SeesTheSameMemoryInBothDirections) {
  Context ctx;
  Flatten layer;
  const Tensor x = random_tensor(ctx, Shape{3, 2, 5, 4}, DType::f32, 1);
  for (const Mode mode : {Mode::eval, Mode::train}) {
    const ConstTensorView y = layer.forward(ctx, x, mode);
    EXPECT_EQ(y.shape(), (Shape{3, 40}));
    EXPECT_EQ(y.raw(), x.view().raw());
  }
  const Tensor dy = random_tensor(ctx, Shape{3, 40}, DType::f32, 2);
  const ConstTensorView dx = layer.backward(ctx, dy, InputGrad::needed);
  EXPECT_EQ(dx.shape(), x.shape());
  EXPECT_EQ(dx.raw(), dy.view().raw());
  EXPECT_TRUE(layer.backward(ctx, dy, InputGrad::skipped).empty());
  EXPECT_EQ(layer.held_bytes(), 0U);
}

TEST(Flatten, RefusesWhatHasNoFeaturesAndGradientsThatAreNotItsOwn) {
  Context ctx;
  Flatten layer;
  layer.set_name("probe");
  EXPECT_TRUE(contains(message_of([&] { (void)layer.output_shape(Shape{4}); }), "'probe'"));
  const std::int64_t most = std::int64_t{1} << 62;
  EXPECT_THROW((void)layer.output_shape(Shape{0, 8, most}), InvalidArgument);
  const Tensor x = Tensor::zeros(ctx, Shape{2, 3, 2}), dy = Tensor::zeros(ctx, Shape{2, 6});
  EXPECT_THROW(layer.backward(ctx, dy, InputGrad::needed), InvalidArgument);
  layer.forward(ctx, x, Mode::train);
  EXPECT_THROW(layer.backward(ctx, x, InputGrad::needed), InvalidArgument);
  EXPECT_NO_THROW(layer.backward(ctx, dy, InputGrad::needed));
}

}  // namespace
}  // namespace dkfac::nn
