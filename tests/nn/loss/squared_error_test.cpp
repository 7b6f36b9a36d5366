#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "dkfac/nn/loss.h"

#include "nn/nn_support.h"
#include "support/both_backends.h"
#include "support/near.h"

namespace dkfac::nn {
namespace {

using namespace dkfac::testing;

double loss_of(Context& ctx, ConstTensorView y, ConstTensorView t, double scale = 1,
               TensorView grad = {}) {
  double loss = 0;
  squared_error(ctx, y, t, scale, grad, view_of(&loss, Shape{1}));
  return loss;
}

class SquaredError : public BothBackends {};
DKFAC_BOTH_BACKENDS(SquaredError);

TEST_P(SquaredError, FollowsItsFormulaInBothPrecisions) {
  const Tensor y = random_tensor(ctx, Shape{5, 4}, DType::f64, 1, -3, 3);
  const Tensor t = random_tensor(ctx, Shape{5, 4}, DType::f64, 2, -3, 3);
  double expected = 0;
  for (std::int64_t i = 0; i < 20; ++i)
    expected += 0.5 * std::pow(y.data<double>()[i] - t.data<double>()[i], 2);
  // 20 terms, three roundings each; in f32 that of the inputs and of the difference, twice squared.
  EXPECT_NEAR(loss_of(ctx, y, t), expected, 60 * eps<double> * expected);
  EXPECT_NEAR(loss_of(ctx, to_f32(ctx, y), to_f32(ctx, t)), expected, 60 * eps<float> * expected);
  double sum = 1;  // Added to what is there.
  squared_error(ctx, y, t, 1, {}, view_of(&sum, Shape{1}));
  EXPECT_NEAR(sum, 1 + expected, 60 * eps<double> * expected);
}

TEST_P(SquaredError, GradientMatchesDifferences) {
  Tensor y = random_tensor(ctx, Shape{5, 4}, DType::f64, 1, -3, 3);
  const Tensor t = random_tensor(ctx, Shape{5, 4}, DType::f64, 2, -3, 3);
  Tensor grad = Tensor::empty(ctx, Shape{5, 4}, DType::f64);
  const double scale = 0.25, step = 1e-5;
  (void)loss_of(ctx, y, t, scale, grad);
  for (std::int64_t i = 0; i < 20; ++i) {
    double& e = y.data<double>()[i];
    const double before = e;
    e = before + step;
    const double above = loss_of(ctx, y, t);
    e = before - step;
    const double below = loss_of(ctx, y, t);
    e = before;
    EXPECT_NEAR(grad.data<double>()[i], scale * (above - below) / (2 * step), kGradientTolerance);
  }
}

TEST_P(SquaredError, OfAnEmptyBatchIsNothingAndANanIsSeen) {
  EXPECT_EQ(loss_of(ctx, Tensor::empty(ctx, Shape{0, 3}), Tensor::empty(ctx, Shape{0, 3})), 0);
  const double y[2] = {1, std::numeric_limits<double>::quiet_NaN()}, t[2] = {1, 1};
  EXPECT_TRUE(std::isnan(loss_of(ctx, view_of(y, Shape{1, 2}), view_of(t, Shape{1, 2}))));
}

TEST_P(SquaredError, RefusesWhatDoesNotFit) {
  Tensor y = Tensor::zeros(ctx, Shape{2, 3}, DType::f64);
  Tensor other = Tensor::zeros(ctx, Shape{3, 2}, DType::f64);
  double loss = 0;
  const auto refusal = [&](ConstTensorView outputs, ConstTensorView targets, TensorView grad,
                           TensorView sum) {
    return message_of([&] { squared_error(ctx, outputs, targets, 1, grad, sum); });
  };
  const TensorView sum = view_of(&loss, Shape{1});
  EXPECT_TRUE(contains(refusal(y, other, {}, sum), "targets are f64 [3, 2]"));
  EXPECT_TRUE(contains(refusal(y, to_f32(ctx, y), {}, sum), "targets are f32"));
  EXPECT_TRUE(contains(refusal(y, y, other, sum), "grad are f64 [3, 2]"));
  EXPECT_TRUE(contains(refusal(y.view().reshape(Shape{6}), y, {}, sum), "[n, outputs]"));
  EXPECT_TRUE(contains(refusal(y, y, {}, y), "loss is f64 [2, 3]"));
  EXPECT_TRUE(contains(message_of([&] { sample_targets(ctx, y, {.step = -1}, y); }), "step is -1"));
}

class SampledTargets : public BothBackends {};
DKFAC_BOTH_BACKENDS(SampledTargets);

TEST_P(SampledTargets, AreNormalAroundTheOutputs) {
  constexpr std::int64_t kSamples = 20000;
  Tensor y = Tensor::empty(ctx, Shape{kSamples, 2}, DType::f64);
  for (std::int64_t i = 0; i < 2 * kSamples; ++i) y.data<double>()[i] = i % 2 == 0 ? 3 : -100;
  Tensor t = Tensor::empty(ctx, Shape{kSamples, 2}, DType::f64);
  sample_targets(ctx, y, {.seed = 4, .step = 9}, t);
  double mean[2] = {0, 0}, moment[3] = {0, 0, 0};  // Of e0^2, e1^2 and e0 e1.
  for (std::int64_t i = 0; i < kSamples; ++i) {
    const double* row = t.data<double>() + 2 * i;
    const double e[2] = {row[0] - 3, row[1] + 100};
    for (int k = 0; k < 2; ++k) {
      mean[k] += e[k] / kSamples;
      moment[k] += e[k] * e[k] / kSamples;
    }
    moment[2] += e[0] * e[1] / kSamples;
  }
  // Five standard deviations: 1/sqrt(n) of a mean and of a product, sqrt(2/n) of a square.
  const double deviation = 5 / std::sqrt(static_cast<double>(kSamples));
  EXPECT_NEAR(mean[0], 0, deviation);
  EXPECT_NEAR(mean[1], 0, deviation);
  EXPECT_NEAR(moment[0], 1, std::sqrt(2.0) * deviation);
  EXPECT_NEAR(moment[1], 1, std::sqrt(2.0) * deviation);
  EXPECT_NEAR(moment[2], 0, deviation) << "outputs of one sample are independent";
}

TEST_P(SampledTargets, BelongToSeedStepAndPlaceInTheGlobalBatch) {
  const Tensor y = random_tensor(ctx, Shape{6, 3}, DType::f64, 1);
  const auto drawn = [&](ConstTensorView outputs, SampleKey key) {
    Tensor t = Tensor::empty(ctx, outputs.shape(), DType::f64);
    sample_targets(ctx, outputs, key, t);
    return values(ctx, t);
  };
  const auto all = drawn(y, {.seed = 2, .step = 5});
  const auto second = drawn(y.view().slice(0, 4, 2), {.seed = 2, .step = 5, .first = 4});
  EXPECT_EQ(second, std::vector<double>(all.begin() + 12, all.end()));
  EXPECT_NE(drawn(y, {.seed = 2, .step = 6}), all);
  EXPECT_NE(drawn(y, {.seed = 3, .step = 5}), all);
}

}  // namespace
}  // namespace dkfac::nn
