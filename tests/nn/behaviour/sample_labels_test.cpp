#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "dkfac/nn/loss.h"

#include "nn/nn_support.h"

namespace dkfac::nn {
namespace {

using namespace dkfac::testing;

std::vector<std::int32_t> draw(ConstTensorView logits, SampleKey key) {
  std::vector<std::int32_t> labels(static_cast<std::size_t>(logits.dim(0)), -1);
  sample_labels(logits, key, labels);
  return labels;
}

/// `rows` equal rows of the logarithms of `p` plus a constant, which softmax removes.
Tensor rows_of(Context& ctx, std::int64_t rows, const std::vector<double>& p, double constant) {
  Tensor logits = Tensor::empty(ctx, Shape{rows, std::ssize(p)}, DType::f64);
  for (std::int64_t i = 0; i < logits.numel(); ++i) {
    logits.data<double>()[i] = constant + std::log(p[static_cast<std::size_t>(i % std::ssize(p))]);
  }
  return logits;
}

TEST(SampleLabels, FollowTheSoftmax) {
  Context ctx;
  constexpr std::int64_t kRows = 40000;
  const std::vector<double> p{0.5, 0.0, 0.05, 0.3, 0.15};
  const auto labels = draw(rows_of(ctx, kRows, p, 700), {.seed = 3, .step = 5});
  std::vector<double> count(p.size());
  for (const std::int32_t label : labels) ++count.at(static_cast<std::size_t>(label));
  for (std::size_t k = 0; k < p.size(); ++k) {
    // Five standard deviations of a binomial share.
    const double bound = 5 * std::sqrt(p[k] * (1 - p[k]) / kRows);
    EXPECT_NEAR(count[k] / kRows, p[k], bound) << k;
  }
}

TEST(SampleLabels, DependOnRowAndKeyAlone) {
  Context ctx;
  const Tensor logits = random_tensor(ctx, Shape{64, 10}, DType::f64, 1, -1, 1);
  const auto whole = draw(logits, {.seed = 3, .step = 5, .first = 100});
  for (const std::int64_t ranks : {2, 4}) {
    std::vector<std::int32_t> joined;
    const std::int64_t share = 64 / ranks;
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      const auto part = draw(logits.view().slice(0, rank * share, share),
                             {.seed = 3, .step = 5, .first = 100 + rank * share});
      joined.insert(joined.end(), part.begin(), part.end());
    }
    EXPECT_EQ(joined, whole) << ranks;
  }
  EXPECT_EQ(draw(logits, {.seed = 3, .step = 5, .first = 100}), whole);
  for (const SampleKey other : {SampleKey{4, 5, 100}, SampleKey{3, 6, 100}, SampleKey{3, 5, 101}}) {
    EXPECT_NE(draw(logits, other), whole);
  }
}

TEST(SampleLabels, AreThoseOfTheValuesWhateverTheirType) {
  Context ctx;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const Tensor rounded =
        cast_to(ctx, random_tensor(ctx, Shape{200, 10}, DType::f64, 1, -3, 3), dtype);
    EXPECT_EQ(draw(rounded, {.step = 1}), draw(cast_to(ctx, rounded, DType::f64), {.step = 1}));
  }
}

TEST(SampleLabels, KnowImpossibleClassesAndRowsThatAreNoNumbers) {
  Context ctx;
  constexpr double kInf = std::numeric_limits<double>::infinity();
  Tensor logits = Tensor::zeros(ctx, Shape{3, 4}, DType::f64);
  double* x = logits.data<double>();
  std::fill_n(x, 4, -kInf);
  x[2] = -1e300;
  x[4 + 3] = std::nan("");
  x[8 + 3] = kInf;
  for (std::int64_t step = 0; step < 50; ++step) {
    EXPECT_EQ(draw(logits, {.step = step}), (std::vector<std::int32_t>{2, 0, 0}));
  }
}

TEST(SampleLabels, RefusesWhatDoesNotFit) {
  Context ctx;
  const Tensor logits = Tensor::zeros(ctx, Shape{3, 4}, DType::f64);
  std::vector<std::int32_t> labels(2);
  EXPECT_TRUE(contains(message_of([&] { sample_labels(logits, {}, labels); }),
                       "room for 2 labels of logits [3, 4]"));
  EXPECT_TRUE(contains(
      message_of([&] { sample_labels(logits.view().slice(0, 0, 2), {.step = -1}, labels); }),
      "step is -1"));
  EXPECT_EQ(draw(logits.view().slice(0, 0, 0), {}), std::vector<std::int32_t>{});
}

TEST(SoftTargets, AreWhatTheLossOfLabelsComparesWith) {
  Context ctx;
  const Tensor logits = random_tensor(ctx, Shape{5, 4}, DType::f64, 1, -3, 3);
  const std::vector<std::int32_t> labels{0, 3, 2, 2, 1};
  for (const double smoothing : {0.0, 0.1, 1.0}) {
    Tensor targets = Tensor::empty(ctx, logits.shape(), DType::f64);
    Tensor of_targets = Tensor::empty(ctx, logits.shape(), DType::f64);
    Tensor of_labels = Tensor::empty(ctx, logits.shape(), DType::f64);
    soft_targets(labels, smoothing, targets);
    const LossSum a = softmax_cross_entropy(ctx, logits, targets, 1, of_targets);
    const LossSum b = softmax_cross_entropy(ctx, logits, labels, smoothing, 1, of_labels);
    EXPECT_EQ(a.loss, b.loss);
    EXPECT_EQ(values(ctx, of_targets), values(ctx, of_labels));
  }
  Tensor targets = Tensor::empty(ctx, Shape{5, 3}, DType::f32);
  EXPECT_TRUE(contains(message_of([&] { soft_targets(labels, 0, targets); }),
                       "[soft_targets] label 3 of sample 1"));
}

}  // namespace
}  // namespace dkfac::nn
