#include <gtest/gtest.h>

#include "nn/nn_support.h"

namespace dkfac::nn {
namespace {

using namespace dkfac::testing;

TEST(Relu, CutsOffNegativeValuesAndKeepsNan) {
  Context ctx;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double x[] = {-2, 0, 3, nan};
  Relu relu;
  const auto y = values(ctx, relu.forward(ctx, view_of(x, Shape{2, 2}), Mode::train));
  EXPECT_EQ(y[0], 0);
  EXPECT_EQ(y[1], 0);
  EXPECT_EQ(y[2], 3);
  EXPECT_TRUE(std::isnan(y[3]));
  const double dy[] = {5, 6, 7, 8};
  const auto dx = values(ctx, relu.backward(ctx, view_of(dy, Shape{2, 2}), InputGrad::needed));
  EXPECT_EQ(dx, (std::vector<double>{0, 0, 7, 0}));
}

TEST(Relu, GradientsMatchDifferencesAwayFromTheKink) {
  Context ctx;
  Relu relu;
  Tensor x = random_tensor(ctx, Shape{3, 4, 5, 2}, DType::f64, 1);
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    double& e = x.data<double>()[i];
    if (std::abs(e) < 1e-3) e += 0.1;
  }
  const GradientCheckResult result = check_gradients(ctx, relu, x, {.elements = 120});
  EXPECT_LE(result.worst, kGradientTolerance) << result.where;
  EXPECT_EQ(result.checked, 120);
}

TEST(Relu, CoversEveryElementOfALargeTensor) {
  Context ctx;
  Relu relu;
  const Tensor x = random_tensor(ctx, Shape{3, 33333}, DType::f32, 1);
  const Tensor dy = random_tensor(ctx, x.shape(), DType::f32, 2);
  const ConstTensorView y = relu.forward(ctx, x, Mode::train);
  const ConstTensorView dx = relu.backward(ctx, dy, InputGrad::needed);
  std::int64_t wrong = 0;
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    const float in = x.data<float>()[i];
    wrong += y.data<float>()[i] != (in > 0 ? in : 0.0F);
    wrong += dx.data<float>()[i] != (in > 0 ? dy.data<float>()[i] : 0.0F);
  }
  EXPECT_EQ(wrong, 0);
}

TEST(Relu, KeepsItsMemoryWhenTheBatchShrinksAndGrowsBack) {
  Context ctx;
  Relu relu;
  const Tensor x = random_tensor(ctx, Shape{8, 4}, DType::f32, 1);
  const void* first = relu.forward(ctx, x, Mode::train).raw();
  const ConstTensorView part = relu.forward(ctx, x.view().slice(0, 0, 3), Mode::train);
  EXPECT_EQ(part.shape(), (Shape{3, 4}));
  EXPECT_EQ(part.raw(), first);
  EXPECT_EQ(relu.forward(ctx, x, Mode::train).raw(), first);
}

}  // namespace
}  // namespace dkfac::nn
