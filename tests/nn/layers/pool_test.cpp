#include <cmath>

#include <gtest/gtest.h>

#include "nn/nn_support.h"

namespace dkfac::nn {
namespace {

using namespace dkfac::testing;

TEST(MaxPool, TakesTheLargestOfEachWindowPerChannel) {
  Context ctx;
  Pool2d pool(PoolKind::max, 2, 2);
  // 2 x 4 positions of 2 channels.
  const double x[] = {1, -1, 5, -2, 0, 9, 2, 8, 3, -4, 4, -3, 7, 6, 1, 5};
  const auto y = values(ctx, pool.forward(ctx, view_of(x, Shape{1, 2, 4, 2}), Mode::train));
  EXPECT_EQ(y, (std::vector<double>{5, -1, 7, 9}));
  const double dy[] = {10, 20, 30, 40};
  const auto dx =
      values(ctx, pool.backward(ctx, view_of(dy, Shape{1, 1, 2, 2}), InputGrad::needed));
  EXPECT_EQ(dx, (std::vector<double>{0, 20, 10, 0, 0, 40, 0, 0, 0, 0, 0, 0, 30, 0, 0, 0}));
}

TEST(MaxPool, GivesTheGradientOfEqualMaximaToTheFirst) {
  Context ctx;
  Pool2d pool(PoolKind::max, 2, 2);
  const double x[] = {1, 3, 3, 3}, dy[] = {2};
  pool.forward(ctx, view_of(x, Shape{1, 2, 2, 1}), Mode::train);
  const auto dx =
      values(ctx, pool.backward(ctx, view_of(dy, Shape{1, 1, 1, 1}), InputGrad::needed));
  EXPECT_EQ(dx, (std::vector<double>{0, 2, 0, 0}));
}

TEST(MaxPool, ANanWinsWhereverItStands) {
  Context ctx;
  for (std::size_t at = 0; at < 4; ++at) {
    Pool2d pool(PoolKind::max, 2, 2);
    std::vector<double> x{1, 2, 3, 4};
    x[at] = std::numeric_limits<double>::quiet_NaN();
    const auto y =
        values(ctx, pool.forward(ctx, view_of(x.data(), Shape{1, 2, 2, 1}), Mode::train));
    EXPECT_TRUE(std::isnan(y[0])) << at;
  }
}

struct PoolCase {
  PoolKind kind;
  int kernel, stride;
  Shape shape;
  int pad = 0;
};
class Pooling : public ::testing::TestWithParam<PoolCase> {};
// Windows side by side, overlapping, with gaps, and with a part left over.
INSTANTIATE_TEST_SUITE_P(
    Shapes, Pooling,
    ::testing::Values(PoolCase{PoolKind::max, 2, 2, Shape{2, 6, 4, 3}},
                      PoolCase{PoolKind::max, 3, 2, Shape{2, 7, 9, 2}},
                      PoolCase{PoolKind::max, 2, 3, Shape{3, 8, 7, 1}},
                      PoolCase{PoolKind::max, 2, 2, Shape{1, 5, 75, 6}},
                      PoolCase{PoolKind::max, 3, 1, Shape{2, 5, 4, 21}},
                      PoolCase{PoolKind::average, 2, 2, Shape{2, 5, 7, 3}},
                      PoolCase{PoolKind::average, 3, 1, Shape{2, 5, 6, 2}},
                      PoolCase{PoolKind::max, 3, 2, Shape{2, 7, 8, 3}, 1},
                      PoolCase{PoolKind::max, 3, 2, Shape{2, 8, 40, 2}, 1},
                      PoolCase{PoolKind::max, 2, 1, Shape{2, 3, 3, 5}, 1},
                      PoolCase{PoolKind::max, 3, 2, Shape{2, 9, 6, 19}, 1},
                      PoolCase{PoolKind::max, 5, 3, Shape{1, 1, 4, 1}, 2},
                      PoolCase{PoolKind::average, 3, 2, Shape{2, 7, 5, 3}, 1},
                      PoolCase{PoolKind::average, 4, 1, Shape{1, 3, 3, 70}, 2}),
    [](const auto& param) {
      return std::string(param.param.kind == PoolKind::max ? "max" : "average") +
             std::to_string(param.param.kernel) + "by" + std::to_string(param.param.stride) + "c" +
             std::to_string(param.param.shape[3]) + "p" + std::to_string(param.param.pad) + "w" +
             std::to_string(param.param.shape[2]);
    });

TEST_P(Pooling, GradientsMatchDifferences) {
  const PoolCase& c = GetParam();
  Context ctx;
  Pool2d pool(c.kind, c.kernel, c.stride, c.pad);
  // A permutation of distinct values: no two maxima are closer than the step.
  Tensor x = Tensor::empty(ctx, c.shape, DType::f64);
  std::vector<std::int64_t> order(static_cast<std::size_t>(x.numel()));
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int64_t>(i);
  Random(4).shuffle(order);
  for (std::size_t i = 0; i < order.size(); ++i) {
    x.data<double>()[i] = 0.01 * static_cast<double>(order[i]);
  }
  const GradientCheckResult result = check_gradients(ctx, pool, x, {.elements = 200});
  EXPECT_LE(result.worst, kGradientTolerance) << result.where;
}

TEST_P(Pooling, FollowsItsDefinition) {
  const PoolCase& c = GetParam();
  Context ctx;
  Pool2d pool(c.kind, c.kernel, c.stride, c.pad);
  // Negative throughout: zeros of the padding would win a maximum.
  const Tensor x = random_tensor(ctx, c.shape, DType::f32, 1, -2, -1);
  const ConstTensorView y = pool.forward(ctx, x, Mode::train);
  const auto xv = values(ctx, x);
  std::vector<double> expected;
  for (std::int64_t n = 0; n < y.dim(0); ++n)
    for (std::int64_t i = 0; i < y.dim(1); ++i)
      for (std::int64_t j = 0; j < y.dim(2); ++j)
        for (std::int64_t ch = 0; ch < y.dim(3); ++ch) {
          double largest = -1e9, sum = 0;
          for (int kh = 0; kh < c.kernel; ++kh)
            for (int kw = 0; kw < c.kernel; ++kw) {
              const std::int64_t h = i * c.stride + kh - c.pad, w = j * c.stride + kw - c.pad;
              if (h < 0 || h >= c.shape[1] || w < 0 || w >= c.shape[2]) continue;
              const std::int64_t at = ((n * c.shape[1] + h) * c.shape[2] + w) * c.shape[3] + ch;
              largest = std::max(largest, xv[static_cast<std::size_t>(at)]);
              sum += xv[static_cast<std::size_t>(at)];
            }
          expected.push_back(c.kind == PoolKind::max ? largest : sum / (c.kernel * c.kernel));
        }
  EXPECT_TRUE(near(values(ctx, y), expected, 25 * eps<float>));  // up to 25 terms
}

TEST(Pool2d, RefusesInputsSmallerThanItsWindow) {
  Context ctx;
  Pool2d pool(PoolKind::max, 3, 3);
  pool.set_name("probe");
  const Tensor x = Tensor::zeros(ctx, Shape{1, 2, 5, 1}), flat = Tensor::zeros(ctx, Shape{4, 9});
  EXPECT_TRUE(contains(message_of([&] { pool.forward(ctx, x, Mode::eval); }), "[pool2d] 'probe'"));
  EXPECT_THROW(pool.forward(ctx, flat, Mode::eval), InvalidArgument);
  EXPECT_THROW(Pool2d(PoolKind::max, 0, 1), InvalidArgument);
  EXPECT_THROW(Pool2d(PoolKind::max, 1, 0), InvalidArgument);
  EXPECT_THROW(Pool2d(PoolKind::max, 3, 1, 2), InvalidArgument);
  EXPECT_THROW(Pool2d(PoolKind::max, 3, 1, -1), InvalidArgument);
  EXPECT_EQ(Pool2d(PoolKind::max, 3, 2, 1).output_shape(Shape{1, 32, 32, 4}),
            (Shape{1, 16, 16, 4}));
}

TEST(GlobalAveragePool, AveragesOverPositionsAndItsGradientsMatchDifferences) {
  Context ctx;
  GlobalPool pool(PoolKind::average);
  const double x[] = {1, 10, 2, 20, 3, 30, 6, 60};
  const auto y = values(ctx, pool.forward(ctx, view_of(x, Shape{1, 2, 2, 2}), Mode::train));
  EXPECT_EQ(y, (std::vector<double>{3, 30}));
  const Tensor images = random_tensor(ctx, Shape{3, 4, 5, 6}, DType::f64, 1);
  const GradientCheckResult result = check_gradients(ctx, pool, images);
  EXPECT_LE(result.worst, kGradientTolerance) << result.where;
  const Tensor flat = Tensor::zeros(ctx, Shape{4, 9});
  EXPECT_THROW(pool.forward(ctx, flat, Mode::eval), InvalidArgument);
}

TEST(GlobalMaxPool, TakesTheFirstLargestPositionPerChannel) {
  Context ctx;
  GlobalPool pool(PoolKind::max);
  const double x[] = {1, -1, 4, -3, 4, -1, 2, -2}, dy[] = {10, 20};
  EXPECT_EQ(values(ctx, pool.forward(ctx, view_of(x, Shape{1, 2, 2, 2}), Mode::train)),
            (std::vector<double>{4, -1}));
  EXPECT_EQ(values(ctx, pool.backward(ctx, view_of(dy, Shape{1, 2}), InputGrad::needed)),
            (std::vector<double>{0, 20, 10, 0, 0, 0, 0, 0}));
  const double nan = std::numeric_limits<double>::quiet_NaN(), with_nan[] = {1, nan, 3, 2};
  EXPECT_TRUE(std::isnan(
      values(ctx, pool.forward(ctx, view_of(with_nan, Shape{1, 2, 2, 1}), Mode::train))[0]));
}

TEST(GlobalMaxPool, GradientsMatchDifferences) {
  Context ctx;
  GlobalPool pool(PoolKind::max);
  const Tensor images = random_tensor(ctx, Shape{3, 4, 5, 37}, DType::f64, 1);
  const GradientCheckResult result = check_gradients(ctx, pool, images, {.elements = 200});
  EXPECT_LE(result.worst, kGradientTolerance) << result.where;
}

}  // namespace
}  // namespace dkfac::nn
