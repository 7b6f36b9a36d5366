#include "dkfac/nn/loss.h"

#include <cmath>

#include <gtest/gtest.h>

#include "nn/nn_support.h"

namespace dkfac::nn {
namespace {

using namespace dkfac::testing;

/// Loss of one sample by the formula, without any care for overflow.
double naive_loss(const std::vector<double>& x, std::size_t label, double smoothing) {
  double sum = 0;
  for (const double e : x) sum += std::exp(e);
  double loss = -(1 - smoothing) * std::log(std::exp(x[label]) / sum);
  for (const double e : x) {
    loss -= smoothing / static_cast<double>(x.size()) * std::log(std::exp(e) / sum);
  }
  return loss;
}

class SmoothedLoss : public ::testing::TestWithParam<double> {};
INSTANTIATE_TEST_SUITE_P(Smoothing, SmoothedLoss, ::testing::Values(0.0, 0.1, 1.0),
                         [](const auto& param) {
                           return "percent" + std::to_string(static_cast<int>(param.param * 100));
                         });

TEST_P(SmoothedLoss, FollowsItsFormulaInBothPrecisions) {
  Context ctx;
  const Tensor logits = random_tensor(ctx, Shape{5, 4}, DType::f64, 1, -3, 3);
  const Tensor logits32 = to_f32(ctx, logits);
  const std::vector<std::int32_t> labels{0, 3, 2, 2, 1};
  const auto x = values(ctx, logits);
  double expected = 0;
  for (std::size_t i = 0; i < 5; ++i) {
    expected += naive_loss({x.begin() + static_cast<std::ptrdiff_t>(4 * i),
                            x.begin() + static_cast<std::ptrdiff_t>(4 * i + 4)},
                           static_cast<std::size_t>(labels[i]), GetParam());
  }
  // 5 samples of 4 classes, a few roundings each.
  EXPECT_NEAR(softmax_cross_entropy(ctx, logits, labels, GetParam(), 1, {}).loss, expected,
              80 * eps<double> * expected);
  EXPECT_NEAR(softmax_cross_entropy(ctx, logits32, labels, GetParam(), 1, {}).loss, expected,
              80 * eps<float> * expected);
}

TEST_P(SmoothedLoss, GradientMatchesDifferences) {
  Context ctx;
  Tensor logits = random_tensor(ctx, Shape{5, 4}, DType::f64, 1, -3, 3);
  Tensor grad = Tensor::empty(ctx, Shape{5, 4}, DType::f64);
  const std::vector<std::int32_t> labels{0, 3, 2, 2, 1};
  const double scale = 0.25, step = 1e-5;
  softmax_cross_entropy(ctx, logits, labels, GetParam(), scale, grad);
  for (std::int64_t i = 0; i < 20; ++i) {
    double& e = logits.data<double>()[i];
    const double before = e;
    e = before + step;
    const double above = softmax_cross_entropy(ctx, logits, labels, GetParam(), 1, {}).loss;
    e = before - step;
    const double below = softmax_cross_entropy(ctx, logits, labels, GetParam(), 1, {}).loss;
    e = before;
    EXPECT_NEAR(grad.data<double>()[i], scale * (above - below) / (2 * step), kGradientTolerance);
  }
}

TEST(Loss, CountsCorrectSamplesAndTheFirstOfEqualsWins) {
  Context ctx;
  const double logits[] = {1, 2, 0, /**/ 3, 3, 0, /**/ 3, 3, 0, /**/ -1, -2, -3};
  const std::vector<std::int32_t> labels{1, 0, 1, 2};
  EXPECT_EQ(softmax_cross_entropy(ctx, view_of(logits, Shape{4, 3}), labels, 0, 1, {}).correct, 2);
}

TEST(Loss, LargeLogitsDoNotOverflow) {
  Context ctx;
  const float logits[] = {1000, -1000, 90, 3e38F, 0, -3e38F};
  const std::vector<std::int32_t> labels{1, 0};
  float grad[6];
  const LossSum sum = softmax_cross_entropy(ctx, view_of(logits, Shape{2, 3}), labels, 0, 1,
                                            view_of(grad, Shape{2, 3}));
  EXPECT_EQ(sum.loss, 2000);
  EXPECT_EQ(std::vector(grad, grad + 6), (std::vector<float>{1, -1, 0, 0, 0, 0}));
}

TEST(Loss, ANanMakesTheLossNanAndIsNeverCorrect) {
  Context ctx;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<std::int32_t> labels{0};
  for (std::size_t at = 0; at < 3; ++at) {
    std::vector<double> logits{1, 2, 3}, grad(3);
    logits[at] = nan;
    const LossSum sum = softmax_cross_entropy(ctx, view_of(logits.data(), Shape{1, 3}), labels, 0,
                                              1, view_of(grad.data(), Shape{1, 3}));
    EXPECT_TRUE(std::isnan(sum.loss));
    EXPECT_EQ(sum.correct, 0);
    EXPECT_TRUE(std::isnan(grad[0]));
  }
}

TEST(Loss, AnEmptyBatchCostsNothing) {
  Context ctx;
  const Tensor logits = Tensor::empty(ctx, Shape{0, 3});
  const LossSum sum = softmax_cross_entropy(ctx, logits, {}, 0.1, 1, {});
  EXPECT_EQ(sum.loss, 0);
  EXPECT_EQ(sum.correct, 0);
}

TEST(Loss, RefusesALabelOutOfRange) {
  Context ctx;
  const Tensor logits = Tensor::zeros(ctx, Shape{2, 3});
  for (const std::int32_t label : {-1, 3}) {
    const std::vector<std::int32_t> labels{0, label};
    const std::string message =
        message_of([&] { softmax_cross_entropy(ctx, logits, labels, 0, 1, {}); });
    EXPECT_TRUE(contains(message, "label " + std::to_string(label) + " of sample 1"));
    EXPECT_TRUE(contains(message, "[0, 3)"));
  }
}

TEST(Loss, RefusesArgumentsThatDoNotFit) {
  Context ctx;
  Tensor logits = Tensor::zeros(ctx, Shape{2, 3}), grad = Tensor::zeros(ctx, Shape{2, 4});
  const std::vector<std::int32_t> labels{0, 1}, one{0};
  EXPECT_THROW(softmax_cross_entropy(ctx, logits, one, 0, 1, {}), InvalidArgument);
  EXPECT_THROW(softmax_cross_entropy(ctx, logits, labels, 1.5, 1, {}), InvalidArgument);
  EXPECT_THROW(softmax_cross_entropy(ctx, logits, labels, -0.1, 1, {}), InvalidArgument);
  EXPECT_THROW(softmax_cross_entropy(ctx, logits, labels, 0, INFINITY, {}), InvalidArgument);
  EXPECT_THROW(softmax_cross_entropy(ctx, logits, labels, 0, 1, grad), InvalidArgument);
}

}  // namespace
}  // namespace dkfac::nn
