// Sigmoid cross-entropy and its Monte-Carlo Fisher.

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "dkfac/nn/loss.h"
#include "dkfac/nn/model.h"

#include "nn/nn_support.h"
#include "support/both_backends.h"
#include "support/fisher.h"
#include "support/near.h"

namespace dkfac::nn {
namespace {

using namespace dkfac::testing;
using fisher::Matrix;

struct SigmoidSums {
  double loss = 0, entropy = 0;
};
SigmoidSums sigmoid_sums(Context& ctx, ConstTensorView z, ConstTensorView t, double scale = 1,
                         TensorView grad = {}) {
  double sums[2] = {0, 0};
  sigmoid_cross_entropy(ctx, z, t, scale, grad, view_of(sums, Shape{2}));
  return {sums[0], sums[1]};
}

double sigmoid(double z) { return 1 / (1 + std::exp(-z)); }
double x_log_x(double x) { return x == 0 ? 0 : x * std::log(x); }

class SigmoidCrossEntropy : public BothBackends {};
DKFAC_BOTH_BACKENDS(SigmoidCrossEntropy);

TEST_P(SigmoidCrossEntropy, FollowsItsFormulaInBothPrecisions) {
  const Shape shape{7, 601};  // More outputs than are added at once.
  const Tensor z = random_tensor(ctx, shape, DType::f64, 1, -9, 9);
  Tensor t = random_tensor(ctx, shape, DType::f64, 2, 0, 1);
  for (std::int64_t i = 0; i < 100; ++i) t.data<double>()[3 * i] = static_cast<double>(i % 2);
  double loss = 0, entropy = 0;
  for (std::int64_t i = 0; i < shape.numel(); ++i) {
    const double p = sigmoid(z.data<double>()[i]), x = t.data<double>()[i];
    loss -= x * std::log(p) + (1 - x) * std::log(1 - p);
    entropy -= x_log_x(x) + x_log_x(1 - x);
  }
  const SigmoidSums wide = sigmoid_sums(ctx, z, t);
  // Terms of ten roundings each, and c = 2 for the exponentials' condition up to |z| = 9.
  EXPECT_NEAR(wide.loss, loss, 20 * 9 * eps<double> * loss);
  EXPECT_NEAR(wide.entropy, entropy, 20 * 9 * eps<double> * entropy);
  const SigmoidSums single = sigmoid_sums(ctx, to_f32(ctx, z), to_f32(ctx, t));
  EXPECT_NEAR(single.loss, loss, 20 * eps<float> * loss);
  EXPECT_NEAR(single.entropy, entropy, 20 * eps<float> * entropy);
}

TEST_P(SigmoidCrossEntropy, GradientMatchesDifferences) {
  Tensor z = random_tensor(ctx, Shape{5, 4}, DType::f64, 1, -3, 3);
  const Tensor t = random_tensor(ctx, Shape{5, 4}, DType::f64, 2, 0, 1);
  Tensor grad = Tensor::empty(ctx, Shape{5, 4}, DType::f64);
  const double scale = 0.25, step = 1e-5;
  sigmoid_cross_entropy(ctx, z, t, scale, grad, {});
  for (std::int64_t i = 0; i < 20; ++i) {
    double& e = z.data<double>()[i];
    const double before = e;
    e = before + step;
    const double above = sigmoid_sums(ctx, z, t).loss;
    e = before - step;
    const double below = sigmoid_sums(ctx, z, t).loss;
    e = before;
    EXPECT_NEAR(grad.data<double>()[i], scale * (above - below) / (2 * step), kGradientTolerance);
  }
  Tensor single = Tensor::empty(ctx, Shape{5, 4}, DType::f32);
  sigmoid_cross_entropy(ctx, to_f32(ctx, z), to_f32(ctx, t), scale, single, {});
  EXPECT_TRUE(near(values(ctx, single), values(ctx, grad), 8 * eps<float>));  // c = 8
}

TEST_P(SigmoidCrossEntropy, NeitherOverflowsNorLosesDigits) {
  const double z[] = {1e4, -1e4, -40, 1e4}, t[] = {1, 0, 0, 0};
  const auto loss = [&](std::int64_t i) {
    return sigmoid_sums(ctx, view_of(z + i, Shape{1, 1}), view_of(t + i, Shape{1, 1})).loss;
  };
  EXPECT_NEAR(loss(0), 0, 1e-300);
  EXPECT_NEAR(loss(1), 0, 1e-300);
  EXPECT_NEAR(loss(2), std::exp(-40), 4 * eps<double> * std::exp(-40));
  EXPECT_EQ(loss(3), 1e4);
  const float z32 = -40, t32 = 0;
  EXPECT_NEAR(sigmoid_sums(ctx, view_of(&z32, Shape{1, 1}), view_of(&t32, Shape{1, 1})).loss,
              std::exp(-40), 8 * eps<float> * std::exp(-40));
}

TEST_P(SigmoidCrossEntropy, ReportsNanTargetsOutsideTheRangeAndWhatDoesNotFit) {
  const double z[2] = {1, std::numeric_limits<double>::quiet_NaN()}, t[2] = {1, 1};
  EXPECT_TRUE(std::isnan(sigmoid_sums(ctx, view_of(z, Shape{1, 2}), view_of(t, Shape{1, 2})).loss));
  for (const double target : {-0.01, 1.01}) {
    const SigmoidSums sums =
        sigmoid_sums(ctx, view_of(z, Shape{1, 1}), view_of(&target, Shape{1, 1}));
    EXPECT_TRUE(std::isnan(sums.entropy));
  }
  EXPECT_EQ(
      sigmoid_sums(ctx, Tensor::empty(ctx, Shape{0, 3}), Tensor::empty(ctx, Shape{0, 3})).loss, 0);
  Tensor y = Tensor::zeros(ctx, Shape{2, 3}, DType::f64);
  Tensor other = Tensor::zeros(ctx, Shape{3, 2}, DType::f64);
  EXPECT_TRUE(contains(message_of([&] { sigmoid_cross_entropy(ctx, y, other, 1, {}, {}); }),
                       "targets are f64 [3, 2]"));
  EXPECT_TRUE(contains(message_of([&] { sigmoid_cross_entropy(ctx, y, y, 1, {}, y); }),
                       "sums are f64 [2, 3]"));
  EXPECT_TRUE(contains(message_of([&] { sample_bits(ctx, y, {.step = -1}, y); }), "step is -1"));
}

TEST_P(SigmoidCrossEntropy, BitsHaveTheProbabilitiesOfTheOutputs) {
  constexpr std::int64_t kSamples = 20000;
  const double z[2] = {-1.5, 3};
  Tensor y = Tensor::empty(ctx, Shape{kSamples, 2}, DType::f64);
  for (std::int64_t i = 0; i < 2 * kSamples; ++i) y.data<double>()[i] = z[i % 2];
  const ConstTensorView part = y.view().slice(0, 50, 100);
  Tensor bits = Tensor::empty(ctx, y.shape(), DType::f64);
  Tensor of_part = Tensor::empty(ctx, part.shape(), DType::f64);
  sample_bits(ctx, y, {.seed = 4, .step = 9}, bits);
  sample_bits(ctx, part, {.seed = 4, .step = 9, .first = 50}, of_part);
  EXPECT_EQ(values(ctx, of_part), values(ctx, bits.view().slice(0, 50, 100)));
  double mean[2] = {0, 0}, both = 0;
  for (std::int64_t i = 0; i < kSamples; ++i) {
    const double* row = bits.data<double>() + 2 * i;
    for (int k = 0; k < 2; ++k) {
      ASSERT_TRUE(row[k] == 0 || row[k] == 1);
      mean[k] += row[k] / kSamples;
    }
    both += (row[0] - sigmoid(z[0])) * (row[1] - sigmoid(z[1])) / kSamples;
  }
  // Five standard deviations of a mean of bits, each at most 1/2; of a product at most 1/4.
  const double deviation = 2.5 / std::sqrt(static_cast<double>(kSamples));
  EXPECT_NEAR(mean[0], sigmoid(z[0]), deviation);
  EXPECT_NEAR(mean[1], sigmoid(z[1]), deviation);
  EXPECT_NEAR(both, 0, deviation / 2) << "outputs of one sample are independent";
}

constexpr std::int64_t kIn = 4, kOut = 3, kPoints = 6;

/// Gradient of the weights of a Linear at one sample, [kOut * kIn + kOut].
std::vector<double> linear_gradient(Context& ctx, Model& model, ConstTensorView x,
                                    ConstTensorView targets) {
  const ConstTensorView z = model.forward(ctx, x, Mode::train);
  Tensor grad = Tensor::empty(ctx, z.shape(), DType::f64);
  sigmoid_cross_entropy(ctx, z, targets, 1, grad, {});
  model.backward(ctx, grad);
  return values(ctx, model.gradients());
}

/// [x, 1][x, 1]' (x) diag(p (1-p)), in the order of the gradients: weights by rows, then biases.
void add_closed_form(Matrix& f, const std::vector<double>& x, const std::vector<double>& z) {
  for (std::int64_t k = 0; k < kOut; ++k) {
    const double p = sigmoid(z[static_cast<std::size_t>(k)]);
    const auto place = [&](std::int64_t i) { return i < kIn ? k * kIn + i : kOut * kIn + k; };
    const auto input = [&](std::int64_t i) {
      return i < kIn ? x[static_cast<std::size_t>(i)] : 1.0;
    };
    for (std::int64_t i = 0; i <= kIn; ++i)
      for (std::int64_t j = 0; j <= kIn; ++j)
        f(place(i), place(j)) += p * (1 - p) * input(i) * input(j) / kPoints;
  }
}

// The expectation over all 2^kOut targets with their probabilities, against the closed form.
TEST_P(SigmoidCrossEntropy, FisherOfALinearLayerIsTheClosedForm) {
  auto net = std::make_unique<Sequential>();
  net->add<Linear>("fc", kIn, kOut);
  Model model(ctx, "linear", std::move(net), Shape{kIn}, DType::f64, 3);
  const std::int64_t size = model.parameter_count();
  Matrix expected(size, size), enumerated(size, size), empirical(size, size);
  for (std::int64_t i = 0; i < kPoints; ++i) {
    const Tensor x =
        random_tensor(ctx, Shape{1, kIn}, DType::f64, 30 + static_cast<std::uint64_t>(i), -2, 2);
    const auto z = values(ctx, model.forward(ctx, x, Mode::eval));
    add_closed_form(expected, values(ctx, x), z);
    for (int bits = 0; bits < 1 << kOut; ++bits) {
      double t[kOut], weight = 1;
      for (int k = 0; k < kOut; ++k) {
        t[k] = (bits >> k) & 1;
        const double p = sigmoid(z[static_cast<std::size_t>(k)]);
        weight *= t[k] == 1 ? p : 1 - p;
      }
      fisher::add_outer(enumerated, linear_gradient(ctx, model, x, view_of(t, Shape{1, kOut})),
                        weight / kPoints);
    }
    const Tensor given = random_tensor(ctx, Shape{1, kOut}, DType::f64, 90, 0, 1);
    fisher::add_outer(empirical, linear_gradient(ctx, model, x, given), 1.0 / kPoints);
  }
  // c*n*eps with n = 8 targets of 6 points and c = 4.
  EXPECT_LE(fisher::relative_norm(enumerated.v, expected.v), 4 * 48 * eps<double>);
  EXPECT_GT(fisher::relative_norm(empirical.v, expected.v), 0.1) << "negative control";
}

// Of means of n independent outer products the error is that of one over the root of n.
TEST_P(SigmoidCrossEntropy, DrawnBitsTendToTheFisher) {
  auto net = std::make_unique<Sequential>();
  net->add<Linear>("fc", kIn, kOut);
  Model model(ctx, "linear", std::move(net), Shape{kIn}, DType::f64, 3);
  const std::int64_t size = model.parameter_count();
  const Tensor x = random_tensor(ctx, Shape{1, kIn}, DType::f64, 30, -2, 2);
  const Tensor z = Tensor::copy_of(ctx, model.forward(ctx, x, Mode::eval));
  Matrix expected(size, size);
  for (std::int64_t i = 0; i < kPoints; ++i)
    add_closed_form(expected, values(ctx, x), values(ctx, z));
  const auto error_of = [&](std::int64_t draws) {
    Matrix estimate(size, size);
    for (std::int64_t i = 0; i < draws; ++i) {
      Tensor bits = Tensor::empty(ctx, z.shape(), DType::f64);
      sample_bits(ctx, z, {.seed = 5, .first = i}, bits);
      fisher::add_outer(estimate, linear_gradient(ctx, model, x, bits),
                        1.0 / static_cast<double>(draws));
    }
    return fisher::relative_norm(estimate.v, expected.v);
  };
  // Of a bit's square (t - p)^2, mean v = p (1-p), the relative deviation is at most
  // |1 - 2p| / sqrt(v), and of a product of two it is 1: below 5 in all at these outputs.
  EXPECT_LE(error_of(4000), 5 / std::sqrt(4000.0));
  EXPECT_GT(error_of(4), 5 / std::sqrt(4000.0)) << "negative control";
}

}  // namespace
}  // namespace dkfac::nn
