#include "dkfac/nn/loss.h"

#include <cmath>

#include <gtest/gtest.h>

#include "nn/nn_support.h"

namespace dkfac::nn {
namespace {

using namespace dkfac::testing;

/// Loss of one sample by the formula, without protection against overflow.
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

Tensor distributions(Context& ctx, std::int64_t n, std::int64_t classes, DType dtype) {
  Tensor targets = random_tensor(ctx, Shape{n, classes}, DType::f64, 9, 0, 1);
  for (std::int64_t i = 0; i < n; ++i) {
    double* row = targets.data<double>() + i * classes;
    double sum = 0;
    for (std::int64_t k = 0; k < classes; ++k) sum += row[k];
    for (std::int64_t k = 0; k < classes; ++k) row[k] /= sum;
  }
  Tensor out = Tensor::empty(ctx, targets.shape(), dtype);
  ops::cast(ctx, targets, out);
  return out;
}

TEST(SoftTargets, OfSmoothedLabelsGiveTheSmoothedLoss) {
  Context ctx;
  const Tensor logits = random_tensor(ctx, Shape{5, 4}, DType::f64, 1, -3, 3);
  const std::vector<std::int32_t> labels{0, 3, 2, 2, 1};
  for (const double smoothing : {0.0, 0.1}) {
    Tensor targets = Tensor::empty(ctx, Shape{5, 4}, DType::f64);
    ops::fill(ctx, targets, smoothing / 4);
    for (std::int64_t i = 0; i < 5; ++i) {
      targets.data<double>()[4 * i + labels[static_cast<std::size_t>(i)]] += 1 - smoothing;
    }
    Tensor hard_grad = Tensor::empty(ctx, Shape{5, 4}, DType::f64);
    Tensor soft_grad = Tensor::empty(ctx, Shape{5, 4}, DType::f64);
    const LossSum hard = softmax_cross_entropy(ctx, logits, labels, smoothing, 0.5, hard_grad);
    const LossSum soft = softmax_cross_entropy(ctx, logits, targets, 0.5, soft_grad);
    EXPECT_NEAR(soft.loss, hard.loss, 80 * eps<double> * hard.loss);  // 5 samples of 4 classes
    EXPECT_EQ(soft.correct, hard.correct);
    EXPECT_TRUE(near(values(ctx, soft_grad), values(ctx, hard_grad), 8 * eps<double>));
  }
}

TEST(SoftTargets, GradientMatchesDifferences) {
  Context ctx;
  for (const DType dtype : {DType::f64, DType::f32}) {
    Tensor logits = random_tensor(ctx, Shape{5, 4}, DType::f64, 1, -3, 3);
    Tensor grad = Tensor::empty(ctx, Shape{5, 4}, DType::f64);
    const Tensor targets = distributions(ctx, 5, 4, dtype);
    const auto loss = [&] { return softmax_cross_entropy(ctx, logits, targets, 1, {}).loss; };
    const double scale = 0.25, step = 1e-5;
    softmax_cross_entropy(ctx, logits, targets, scale, grad);
    for (std::int64_t i = 0; i < 20; ++i) {
      double& e = logits.data<double>()[i];
      const double before = e;
      e = before + step;
      const double above = loss();
      e = before - step;
      const double below = loss();
      e = before;
      // Rows of f32 targets sum to 1 within 4 roundings; the gradient assumes exactly 1.
      EXPECT_NEAR(grad.data<double>()[i], scale * (above - below) / (2 * step),
                  dtype == DType::f64 ? kGradientTolerance : 4 * eps<float>);
    }
  }
}

TEST(SoftTargets, RefusesRowsThatAreNoDistributions) {
  Context ctx;
  const Tensor logits = Tensor::zeros(ctx, Shape{2, 2});
  const float more[] = {0.5F, 0.5F, 0.7F, 0.4F}, negative[] = {1, 0, 1.5F, -0.5F};
  const float wrong[] = {1, 0};
  const auto with = [&](const float* t, Shape shape) {
    return message_of([&] { softmax_cross_entropy(ctx, logits, view_of(t, shape), 1, {}); });
  };
  EXPECT_TRUE(contains(with(more, Shape{2, 2}), "sample 1"));
  EXPECT_TRUE(contains(with(negative, Shape{2, 2}), "sample 1"));
  EXPECT_TRUE(contains(with(wrong, Shape{1, 2}), "[1, 2]"));
}

TEST(Loss, TakesLogitsOf16Bits) {
  Context ctx;
  const std::vector<std::int32_t> labels{0, 3, 2};
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const Tensor wide = random_tensor(ctx, Shape{3, 4}, DType::f32, 1, -3, 3);
    Tensor logits = Tensor::empty(ctx, wide.shape(), dtype),
           grad = Tensor::empty(ctx, wide.shape(), dtype);
    Tensor rounded = Tensor::empty(ctx, wide.shape(), DType::f32);
    Tensor expected = Tensor::empty(ctx, wide.shape(), DType::f32);
    ops::cast(ctx, wide, logits);
    ops::cast(ctx, logits, rounded);
    const LossSum of_16 = softmax_cross_entropy(ctx, logits, labels, 0.1, 1, grad);
    EXPECT_EQ(of_16.loss, softmax_cross_entropy(ctx, rounded, labels, 0.1, 1, expected).loss);
    Tensor widened = Tensor::empty(ctx, wide.shape(), DType::f32);
    ops::cast(ctx, grad, widened);
    // Half a unit in the last place of 8 bits.
    EXPECT_TRUE(near(values(ctx, widened), values(ctx, expected), 1.0 / 256));
  }
}

}  // namespace
}  // namespace dkfac::nn
