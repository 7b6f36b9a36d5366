#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "nn/nn_support.h"

namespace dkfac::nn {
namespace {

using namespace dkfac::testing;

// Two samples of three indices of five; 1 occurs three times, 2 never.
const std::vector<std::int32_t> kIndices{1, 0, 1, 4, 3, 1};
ConstTensorView indices() { return view_of(kIndices.data(), {2, 3}); }

TEST(Embedding, GivesTheRowsOfItsTable) {
  Context ctx;
  for (const DType dtype : {DType::f64, DType::f32}) {
    Standalone<Embedding> table(ctx, dtype, 5, 2);
    const std::vector<double> rows = values(ctx, table.value(0));
    const ConstTensorView y = table->forward(ctx, indices(), Mode::eval);
    EXPECT_EQ(y.shape(), Shape({2, 3, 2}));
    EXPECT_EQ(y.dtype(), dtype);
    std::vector<double> expected;
    for (const std::int32_t i : kIndices)
      for (std::size_t c = 0; c < 2; ++c)
        expected.push_back(rows[static_cast<std::size_t>(i) * 2 + c]);
    EXPECT_EQ(values(ctx, y), expected);
  }
}

TEST(Embedding, AddsUpTheGradientsOfAnIndexThatOccursAgain) {
  Context ctx;
  Standalone<Embedding> table(ctx, DType::f64, 5, 2);
  const Tensor dy = random_tensor(ctx, {2, 3, 2}, DType::f64, 4);
  const std::vector<double> g = values(ctx, dy);
  for (int again = 0; again < 2; ++again) {  // Each pass as if it were the only one.
    table->forward(ctx, indices(), Mode::train);
    EXPECT_TRUE(table->backward(ctx, dy, InputGrad::skipped).empty());
    const std::vector<double> sums = values(ctx, table.grad(0));
    for (std::size_t c = 0; c < 2; ++c) {
      EXPECT_EQ(sums[0 + c], g[2 + c]);
      EXPECT_EQ(sums[2 + c], g[0 + c] + g[4 + c] + g[10 + c]);
      EXPECT_EQ(sums[4 + c], 0) << "an index that does not occur";
    }
  }
}

TEST(Embedding, HasTheGradientOfCentralDifferences) {
  Context ctx;
  Standalone<Embedding> table(ctx, DType::f64, 5, 3);
  const Tensor c = random_tensor(ctx, {2, 3, 3}, DType::f64, 6);
  const std::vector<double> weights = values(ctx, c);
  const auto f = [&] {
    const std::vector<double> y = values(ctx, table->forward(ctx, indices(), Mode::train));
    double sum = 0;
    for (std::size_t i = 0; i < y.size(); ++i) sum += weights[i] * y[i] * y[i] / 2;
    return sum;
  };
  (void)f();
  const std::vector<double> y = values(ctx, table->forward(ctx, indices(), Mode::train));
  Tensor dy = Tensor::empty(ctx, {2, 3, 3}, DType::f64);
  for (std::size_t i = 0; i < y.size(); ++i) dy.data<double>()[i] = weights[i] * y[i];
  table->backward(ctx, dy, InputGrad::skipped);
  const std::vector<double> gradient = values(ctx, table.grad(0));
  constexpr double kStep = 1e-5;
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    double& element = table.value(0).data<double>()[i];
    const double kept = element;
    element = kept + kStep;
    const double above = f();
    element = kept - kStep;
    const double below = f();
    element = kept;
    EXPECT_NEAR((above - below) / (2 * kStep), gradient[i], kGradientTolerance) << i;
  }
}

TEST(Positions, AreThoseOfTheInputWhateverCameBefore) {
  Context ctx;
  SinusoidalPositions layer;
  const auto of = [&](std::int64_t t, std::int64_t width) {
    const Tensor x = Tensor::zeros(ctx, {1, t, width}, DType::f64);
    const ConstTensorView y = layer.forward(ctx, x, Mode::eval);
    return std::vector<double>(y.data<double>(), y.data<double>() + y.numel());
  };
  const std::vector<double> first = of(5, 8);
  (void)of(10, 4);  // A table of equal size.
  EXPECT_EQ(of(5, 8), first);
  const std::vector<double> shorter = of(3, 8);
  EXPECT_TRUE(std::equal(shorter.begin(), shorter.end(), first.begin()));
  EXPECT_EQ(first[0], 0);
  EXPECT_EQ(first[1], 1);
}

TEST(Embedding, RefusesWhatIsNoIndex) {
  Context ctx;
  Standalone<Embedding> table(ctx, DType::f64, 5, 2);
  const std::vector<std::int32_t> bad{0, 5};
  EXPECT_TRUE(contains(message_of([&] {
                         table->forward(ctx, view_of(bad.data(), {2, 1}), Mode::eval);
                       }),
                       "index 1 is 5; it must be in [0, 5)"));
  const Tensor floats = Tensor::zeros(ctx, {2, 1});
  EXPECT_TRUE(contains(message_of([&] { table->forward(ctx, floats, Mode::eval); }),
                       "the input is f32; indices are i32"));
  EXPECT_TRUE(contains(message_of([&] { Embedding(0, 2); }), "both must be > 0"));
  const Tensor dy = Tensor::zeros(ctx, {2, 3, 2}, DType::f64);
  table->forward(ctx, indices(), Mode::train);
  EXPECT_TRUE(contains(message_of([&] { table->backward(ctx, dy, InputGrad::needed); }),
                       "make it the first layer"));
}

}  // namespace
}  // namespace dkfac::nn
