#include <cmath>

#include <gtest/gtest.h>

#include "dkfac/core/threads.h"

#include "nn/nn_support.h"

namespace dkfac::nn {
namespace {

using namespace dkfac::testing;

/// One group by the definition, in double.
struct Naive {
  std::vector<double> y, mean, var;
};

Naive naive_group(const std::vector<double>& x, std::size_t channels,
                  const std::vector<double>& gamma, const std::vector<double>& beta,
                  double epsilon) {
  Naive out{std::vector<double>(x.size()), std::vector<double>(channels),
            std::vector<double>(channels)};
  const auto rows = static_cast<double>(x.size() / channels);
  for (std::size_t c = 0; c < channels; ++c) {
    long double sum = 0, squares = 0;
    for (std::size_t i = c; i < x.size(); i += channels) sum += x[i];
    const double mean = static_cast<double>(sum / rows);
    for (std::size_t i = c; i < x.size(); i += channels) squares += (x[i] - mean) * (x[i] - mean);
    out.mean[c] = mean;
    out.var[c] = static_cast<double>(squares / rows);
    const double inverse = 1 / std::sqrt(out.var[c] + epsilon);
    for (std::size_t i = c; i < x.size(); i += channels) {
      out.y[i] = (x[i] - mean) * inverse * gamma[c] + beta[c];
    }
  }
  return out;
}

void set_affine(Context& ctx, Standalone<BatchNorm2d>& norm) {
  const std::int64_t c = norm->channels();
  ops::copy(ctx, random_tensor(ctx, Shape{c}, norm.value(0).dtype(), 11, 0.5, 2), norm.value(0));
  ops::copy(ctx, random_tensor(ctx, Shape{c}, norm.value(1).dtype(), 12), norm.value(1));
}

struct NormCase {
  Shape shape;
  std::int64_t groups;
};
// Few and many channels, lines with and without a tail, [n,c] and [n,h,w,c], several chunks.
const NormCase kNormCases[] = {{Shape{8, 3, 3, 1}, 1},    {Shape{8, 5, 3, 6}, 4},
                               {Shape{4, 2, 2, 64}, 2},   {Shape{6, 3, 5, 100}, 1},
                               {Shape{12, 7}, 3},         {Shape{4, 300}, 2},
                               {Shape{16, 28, 28, 6}, 4}, {Shape{4, 20, 20, 130}, 1}};

class Normalization : public ::testing::TestWithParam<NormCase> {};
INSTANTIATE_TEST_SUITE_P(Shapes, Normalization, ::testing::ValuesIn(kNormCases),
                         [](const auto& param) {
                           std::string name = "g" + std::to_string(param.param.groups);
                           for (int i = 0; i < param.param.shape.ndim(); ++i) {
                             name += "_" + std::to_string(param.param.shape[i]);
                           }
                           return name;
                         });

template <class T>
void compare_with_naive(const NormCase& c, double offset) {
  Context ctx;
  const std::int64_t channels = c.shape[c.shape.ndim() - 1];
  Standalone<BatchNorm2d> norm(ctx, dtype_of<T>, channels, BatchNormOptions{.groups = c.groups});
  set_affine(ctx, norm);
  const Tensor x = random_tensor(ctx, c.shape, dtype_of<T>, 3, offset - 1, offset + 1);
  const auto y = values(ctx, norm->forward(ctx, x, Mode::train));
  const auto xv = values(ctx, x), gamma = values(ctx, norm.value(0)),
             beta = values(ctx, norm.value(1));
  const std::size_t size = xv.size() / static_cast<std::size_t>(c.groups);
  std::vector<double> expected, running_mean(gamma.size()), running_var(gamma.size(), 0.9);
  const auto rows = static_cast<double>(size / gamma.size());
  for (std::size_t g = 0; g < static_cast<std::size_t>(c.groups); ++g) {
    const std::vector<double> part(xv.begin() + static_cast<std::ptrdiff_t>(g * size),
                                   xv.begin() + static_cast<std::ptrdiff_t>((g + 1) * size));
    const Naive naive = naive_group(part, gamma.size(), gamma, beta, 1e-5);
    expected.insert(expected.end(), naive.y.begin(), naive.y.end());
    for (std::size_t k = 0; k < gamma.size(); ++k) {
      running_mean[k] += 0.1 * naive.mean[k] / static_cast<double>(c.groups);
      running_var[k] += 0.1 * naive.var[k] * rows / (rows - 1) / static_cast<double>(c.groups);
    }
  }
  // Short runs of 64 in T, the rest in f64; c = 2 for the scale and the shift. An offset costs f64
  // no more than its own rounding, f32 the rounding of the running mean.
  const double tolerance = 2 * 64 * eps<T> + std::abs(offset) * eps<double>;
  EXPECT_TRUE(near(y, expected, tolerance));
  EXPECT_TRUE(near(values(ctx, norm->buffers()[0].value), running_mean, tolerance));
  EXPECT_TRUE(near(values(ctx, norm->buffers()[1].value), running_var, tolerance));
}

TEST_P(Normalization, FollowsItsDefinitionInDouble) { compare_with_naive<double>(GetParam(), 0); }
TEST_P(Normalization, FollowsItsDefinitionInSingle) { compare_with_naive<float>(GetParam(), 0); }
TEST_P(Normalization, KeepsItsDigitsWhenTheMeanIsLargeInDouble) {
  compare_with_naive<double>(GetParam(), 1e4);
}
TEST_P(Normalization, KeepsItsDigitsWhenTheMeanIsLargeInSingle) {
  compare_with_naive<float>(GetParam(), 1e4);
}

TEST(BatchNorm, ANaiveVarianceWouldCancelWhereOursDoesNot) {
  // The negative control of the tests above: mean of squares minus square of the mean, in f32.
  Context ctx;
  const Tensor x = random_tensor(ctx, Shape{1000, 1}, DType::f32, 3, 1e4 - 1, 1e4 + 1);
  float sum = 0, squares = 0;
  for (int i = 0; i < 1000; ++i) {
    sum += x.data<float>()[i];
    squares += x.data<float>()[i] * x.data<float>()[i];
  }
  const float variance = squares / 1000 - sum / 1000 * (sum / 1000);
  EXPECT_GT(std::abs(variance - 1.0F / 3), 0.1F);
}

TEST(BatchNorm, KeepsItsDigitsWhenAFewRowsAreFarFromTheOthers) {
  // The sixteen evenly spaced rows around whose mean the first pass sums are the outliers here.
  Context ctx;
  constexpr std::int64_t kRows = 16000;
  Tensor x = random_tensor(ctx, Shape{kRows, 1}, DType::f32, 3);
  for (std::int64_t i = 0; i < kRows; i += 1000) x.data<float>()[i] += 1e4F;
  Standalone<BatchNorm2d> norm(ctx, DType::f32, 1, BatchNormOptions{.momentum = 1});
  const auto y = values(ctx, norm->forward(ctx, x, Mode::train));
  const Naive naive = naive_group(values(ctx, x), 1, {1}, {0}, 1e-5);
  EXPECT_TRUE(near(y, naive.y, 2 * 64 * eps<float>));  // as above
  const double unbiased = naive.var[0] * kRows / (kRows - 1);
  EXPECT_NEAR(values(ctx, norm->buffers()[1].value)[0], unbiased, 8 * eps<float> * unbiased);
  // Control: sums of squares around those rows, in f32, lose what the second pass recovers.
  float sum = 0, squares = 0;
  for (std::int64_t i = 0; i < kRows; ++i) {
    const float d = x.data<float>()[i] - 1e4F;
    sum += d;
    squares += d * d;
  }
  const double shift = static_cast<double>(sum) / kRows;
  const double variance = static_cast<double>(squares) / kRows - shift * shift;
  EXPECT_GT(std::abs(variance - naive.var[0]), 1e-4 * naive.var[0]);
}

TEST_P(Normalization, GradientsMatchDifferences) {
  const NormCase& c = GetParam();
  Context ctx;
  Standalone<BatchNorm2d> norm(ctx, DType::f64, c.shape[c.shape.ndim() - 1],
                               BatchNormOptions{.groups = c.groups});
  set_affine(ctx, norm);
  const Tensor x = random_tensor(ctx, c.shape, DType::f64, 3, -1, 3);
  const GradientCheckResult result = check_gradients(ctx, norm.layer, x);
  EXPECT_LE(result.worst, kGradientTolerance) << result.where;
}

TEST_P(Normalization, SinglePrecisionGradientsAgreeWithDouble) {
  const NormCase& c = GetParam();
  Context ctx;
  const std::int64_t channels = c.shape[c.shape.ndim() - 1];
  const BatchNormOptions options{.groups = c.groups};
  Standalone<BatchNorm2d> wide(ctx, DType::f64, channels, options);
  Standalone<BatchNorm2d> narrow(ctx, DType::f32, channels, options);
  const Tensor x32 = random_tensor(ctx, c.shape, DType::f32, 3, 99, 101);
  const Tensor dy32 = random_tensor(ctx, c.shape, DType::f32, 4);
  Tensor x = Tensor::empty(ctx, c.shape, DType::f64), dy = Tensor::empty(ctx, c.shape, DType::f64);
  ops::cast(ctx, x32, x);
  ops::cast(ctx, dy32, dy);
  wide->forward(ctx, x, Mode::train);
  narrow->forward(ctx, x32, Mode::train);
  // Groups of two values give dx that nearly cancels; the scale of its terms is 1/std.
  const double tolerance = 8 * 64 * eps<float>;
  const auto expected = values(ctx, wide->backward(ctx, dy, InputGrad::needed));
  EXPECT_TRUE(near(values(ctx, narrow->backward(ctx, dy32, InputGrad::needed)), expected,
                   c.shape.numel() / channels / c.groups < 4 ? 1e-2 : tolerance));
  EXPECT_TRUE(near(values(ctx, narrow.grad(0)), values(ctx, wide.grad(0)), tolerance));
  EXPECT_TRUE(near(values(ctx, narrow.grad(1)), values(ctx, wide.grad(1)), tolerance));
}

TEST(BatchNorm, GhostGroupsEqualSeparateBatches) {
  Context ctx;
  Standalone<BatchNorm2d> ghost(ctx, DType::f64, 5, BatchNormOptions{.groups = 3});
  Standalone<BatchNorm2d> one(ctx, DType::f64, 5);
  set_affine(ctx, ghost);
  set_affine(ctx, one);
  const Tensor x = random_tensor(ctx, Shape{6, 4, 3, 5}, DType::f64, 3);
  const Tensor dy = random_tensor(ctx, Shape{6, 4, 3, 5}, DType::f64, 4);
  const auto y = values(ctx, ghost->forward(ctx, x, Mode::train));
  const auto dx = values(ctx, ghost->backward(ctx, dy, InputGrad::needed));
  const auto dgamma = values(ctx, ghost.grad(0));
  std::vector<double> sum(5);
  for (std::int64_t g = 0; g < 3; ++g) {
    const auto part = static_cast<std::size_t>(g) * 120;
    const auto yg = values(ctx, one->forward(ctx, x.view().slice(0, 2 * g, 2), Mode::train));
    const auto dxg =
        values(ctx, one->backward(ctx, dy.view().slice(0, 2 * g, 2), InputGrad::needed));
    EXPECT_EQ(std::vector(y.begin() + static_cast<std::ptrdiff_t>(part),
                          y.begin() + static_cast<std::ptrdiff_t>(part + 120)),
              yg);
    EXPECT_EQ(std::vector(dx.begin() + static_cast<std::ptrdiff_t>(part),
                          dx.begin() + static_cast<std::ptrdiff_t>(part + 120)),
              dxg);
    for (std::size_t c = 0; c < 5; ++c) sum[c] += values(ctx, one.grad(0))[c];
  }
  EXPECT_TRUE(near(dgamma, sum, 3 * eps<double>));
  // Control: one group over all samples gives another result.
  EXPECT_FALSE(near(values(ctx, one->forward(ctx, x, Mode::train)), y, 1e-3));
}

TEST(BatchNorm, EvaluationUsesTheRunningStatistics) {
  Context ctx;
  Standalone<BatchNorm2d> norm(ctx, DType::f64, 2, BatchNormOptions{.momentum = 1});
  set_affine(ctx, norm);
  const Tensor x = random_tensor(ctx, Shape{8, 2, 2, 2}, DType::f64, 3, 1, 4);
  const auto fresh = values(ctx, norm->forward(ctx, x, Mode::eval));
  const auto gamma = values(ctx, norm.value(0)), beta = values(ctx, norm.value(1));
  auto expected = values(ctx, x);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    expected[i] = expected[i] / std::sqrt(1 + 1e-5) * gamma[i % 2] + beta[i % 2];
  }
  EXPECT_TRUE(near(fresh, expected, 8 * eps<double>));  // mean 0, variance 1 at the start

  norm->forward(ctx, x, Mode::train);
  const auto mean = values(ctx, norm->buffers()[0].value),
             var = values(ctx, norm->buffers()[1].value);
  expected = values(ctx, x);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    expected[i] =
        (expected[i] - mean[i % 2]) / std::sqrt(var[i % 2] + 1e-5) * gamma[i % 2] + beta[i % 2];
  }
  EXPECT_TRUE(near(values(ctx, norm->forward(ctx, x, Mode::eval)), expected, 8 * eps<double>));
  EXPECT_EQ(values(ctx, norm->buffers()[0].value), mean);  // evaluation does not move them
}

TEST(BatchNorm, GivesTheSameBitsForAnyNumberOfThreads) {
  Context ctx;
  Standalone<BatchNorm2d> norm(ctx, DType::f32, 6, BatchNormOptions{.groups = 2});
  const Tensor x = random_tensor(ctx, Shape{32, 28, 28, 6}, DType::f32, 3);
  const Tensor dy = random_tensor(ctx, x.shape(), DType::f32, 4);
  const int before = threads();
  std::vector<std::vector<double>> outputs, gradients;
  for (const int count : {1, 2, 3}) {
    set_threads(count);
    outputs.push_back(values(ctx, norm->forward(ctx, x, Mode::train)));
    gradients.push_back(values(ctx, norm->backward(ctx, dy, InputGrad::needed)));
  }
  set_threads(before);
  EXPECT_EQ(outputs[0], outputs[1]);
  EXPECT_EQ(outputs[0], outputs[2]);
  EXPECT_EQ(gradients[0], gradients[1]);
  EXPECT_EQ(gradients[0], gradients[2]);
}

TEST(BatchNorm, WhatIsNotFiniteReachesTheOutputButNotTheRunningStatistics) {
  Context ctx;
  // The last one is finite, but its variance is too large for f32.
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 1e30F}) {
    SCOPED_TRACE(bad);
    Standalone<BatchNorm2d> norm(ctx, DType::f32, 2);
    Tensor x = random_tensor(ctx, Shape{4, 2, 2, 2}, DType::f32, 3);
    norm->forward(ctx, x, Mode::train);
    const auto mean = values(ctx, norm->buffers()[0].value),
               var = values(ctx, norm->buffers()[1].value);
    x.data<float>()[6] = bad;
    const auto y = values(ctx, norm->forward(ctx, x, Mode::train));
    EXPECT_EQ(std::isfinite(y[0]), bad == 1e30F);
    EXPECT_TRUE(std::isfinite(y[1]));  // the other channel
    const auto next_mean = values(ctx, norm->buffers()[0].value),
               next_var = values(ctx, norm->buffers()[1].value);
    EXPECT_EQ(next_mean[0], mean[0]);
    EXPECT_EQ(next_var[0], var[0]);
    EXPECT_NE(next_mean[1], mean[1]);
    EXPECT_NE(next_var[1], var[1]);
  }
}

TEST(BatchNorm, AConstantChannelGivesItsShift) {
  Context ctx;
  Standalone<BatchNorm2d> norm(ctx, DType::f32, 1);
  Tensor x = Tensor::empty(ctx, Shape{4, 3, 3, 1});
  ops::fill(ctx, x, 0.1);
  ops::fill(ctx, norm.value(1), 0.75);
  for (const double y : values(ctx, norm->forward(ctx, x, Mode::train))) EXPECT_EQ(y, 0.75);
}

TEST(BatchNorm, RefusesBatchesThatItsGroupsDoNotDivide) {
  Context ctx;
  Standalone<BatchNorm2d> norm(ctx, DType::f32, 2, BatchNormOptions{.groups = 4});
  const Tensor x = Tensor::zeros(ctx, Shape{6, 2, 2, 2});
  const std::string message = message_of([&] { norm->forward(ctx, x, Mode::train); });
  EXPECT_TRUE(contains(message, "'probe'"));
  EXPECT_TRUE(contains(message, "6 samples"));
  EXPECT_TRUE(contains(message, "4 equal groups"));
  EXPECT_NO_THROW(norm->forward(ctx, x, Mode::eval));
}

TEST(BatchNorm, RefusesASingleValuePerChannelInTraining) {
  Context ctx;
  Standalone<BatchNorm2d> norm(ctx, DType::f32, 2, BatchNormOptions{.groups = 4});
  const Tensor x = Tensor::zeros(ctx, Shape{4, 1, 1, 2}),
               none = Tensor::zeros(ctx, Shape{0, 2, 2, 2});
  EXPECT_TRUE(contains(message_of([&] { norm->forward(ctx, x, Mode::train); }), "at least 2"));
  EXPECT_THROW(norm->forward(ctx, none, Mode::train), InvalidArgument);
  EXPECT_NO_THROW(norm->forward(ctx, x, Mode::eval));
  EXPECT_NO_THROW(norm->forward(ctx, none, Mode::eval));
}

TEST(BatchNorm, NamesTheLayerAndBothShapesWhenTheInputDoesNotFit) {
  Context ctx;
  Standalone<BatchNorm2d> norm(ctx, DType::f32, 2);
  const Tensor x = Tensor::zeros(ctx, Shape{4, 3, 3, 5});
  const std::string message = message_of([&] { norm->forward(ctx, x, Mode::eval); });
  EXPECT_TRUE(contains(message, "[batch_norm] 'probe'"));
  EXPECT_TRUE(contains(message, "[n, h, w, 2]"));
  EXPECT_TRUE(contains(message, "[4, 3, 3, 5]"));
}

TEST(BatchNorm, RefusesOptionsOutOfRange) {
  EXPECT_THROW(BatchNorm2d(0), InvalidArgument);
  EXPECT_THROW(BatchNorm2d(2, {.groups = 0}), InvalidArgument);
  EXPECT_THROW(BatchNorm2d(2, {.epsilon = 0}), InvalidArgument);
  EXPECT_THROW(BatchNorm2d(2, {.momentum = 0}), InvalidArgument);
  EXPECT_THROW(BatchNorm2d(2, {.momentum = 1.5}), InvalidArgument);
}

}  // namespace
}  // namespace dkfac::nn
