#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/nn/model.h"

#include "nn/nn_support.h"
#include "nn/shared/memory.h"

namespace dkfac::nn {
namespace {

using namespace dkfac::testing;

/// One pass by plain loops, in f64.
struct PlainLayerNorm {
  std::vector<double> y, dx, scale_grad, shift_grad;

  PlainLayerNorm(const std::vector<double>& x, const std::vector<double>& gamma,
                 const std::vector<double>& beta, const std::vector<double>& dy, double epsilon) {
    const std::size_t c = gamma.size(), rows = x.size() / c;
    const auto n = static_cast<double>(c);
    y.resize(x.size());
    dx.resize(x.size());
    scale_grad.resize(c);
    shift_grad.resize(c);
    for (std::size_t r = 0; r < rows; ++r) {
      double mean = 0, variance = 0;
      for (std::size_t k = 0; k < c; ++k) mean += x[r * c + k] / n;
      for (std::size_t k = 0; k < c; ++k)
        variance += (x[r * c + k] - mean) * (x[r * c + k] - mean) / n;
      const double std = std::sqrt(variance + epsilon);
      for (std::size_t k = 0; k < c; ++k) {
        const std::size_t i = r * c + k;
        const double xhat = (x[i] - mean) / std;
        y[i] = xhat * gamma[k] + beta[k];
        scale_grad[k] += dy[i] * xhat;
        shift_grad[k] += dy[i];
        // d xhat_j / d x_k, one j after the other.
        for (std::size_t j = 0; j < c; ++j) {
          const double xhat_j = (x[r * c + j] - mean) / std;
          const double same = j == k ? 1 : 0;
          dx[i] += dy[r * c + j] * gamma[j] * (same - 1 / n - xhat * xhat_j / n) / std;
        }
      }
    }
  }
};

struct Passes {
  std::vector<double> y, dx, scale_grad, shift_grad;
};

/// gamma around 1, beta around 0.
void set_parameters(Context& ctx, Standalone<LayerNorm>& norm, std::int64_t c) {
  const DType dtype = norm.value(0).dtype();
  ops::copy(ctx, random_tensor(ctx, Shape{c}, dtype, 3, 0.5, 1.5), norm.value(0));
  ops::copy(ctx, random_tensor(ctx, Shape{c}, dtype, 4), norm.value(1));
}

Passes run(Context& ctx, Standalone<LayerNorm>& norm, ConstTensorView x, ConstTensorView dy) {
  Passes out;
  out.y = values(ctx, cast_to(ctx, norm->forward(ctx, x, Mode::train), DType::f64));
  out.dx = values(ctx, cast_to(ctx, norm->backward(ctx, dy, InputGrad::needed), DType::f64));
  out.scale_grad = values(ctx, norm.grad(0));
  out.shift_grad = values(ctx, norm.grad(1));
  return out;
}

void expect_near(const Passes& actual, const PlainLayerNorm& expected, double of_activations,
                 double of_parameters) {
  EXPECT_TRUE(near(actual.y, expected.y, of_activations));
  EXPECT_TRUE(near(actual.dx, expected.dx, of_activations));
  EXPECT_TRUE(near(actual.scale_grad, expected.scale_grad, of_parameters));
  EXPECT_TRUE(near(actual.shift_grad, expected.shift_grad, of_parameters));
}

class LayerNorms : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(DTypes, LayerNorms,
                         ::testing::Values(DType::f64, DType::f32, DType::bf16, DType::f16),
                         [](const auto& param) { return std::string(name_of(param.param)); });

TEST_P(LayerNorms, NormaliseEachRow) {
  Context ctx;
  const DType dtype = GetParam();
  const bool wide = dtype == DType::f64;
  for (const Shape& shape : {Shape{1, 3}, Shape{5, 7}, Shape{3, 4, 33}, Shape{2, 3, 5, 64}}) {
    SCOPED_TRACE(detail::concat(shape));
    const std::int64_t c = shape[shape.ndim() - 1];
    Standalone<LayerNorm> norm(ctx, wide ? DType::f64 : DType::f32, c);
    set_parameters(ctx, norm, c);
    const Tensor x = cast_to(ctx, random_tensor(ctx, shape, DType::f64, 1, -2, 4), dtype);
    const Tensor dy = cast_to(ctx, random_tensor(ctx, shape, DType::f64, 2), dtype);
    const auto as_f64 = [&](ConstTensorView t) { return values(ctx, cast_to(ctx, t, DType::f64)); };
    const PlainLayerNorm plain(as_f64(x), as_f64(norm.value(0)), as_f64(norm.value(1)), as_f64(dy),
                               1e-5);
    // n = 64 terms of a row, 30 rows; deviations are above 0.1: c = 10. 16 bits round y and dx
    // once.
    const double sums = 10 * 64 * (wide ? eps<double> : static_cast<double>(eps<float>));
    const double rounding = dtype == DType::bf16 ? 0x1p-8 : dtype == DType::f16 ? 0x1p-11 : 0;
    expect_near(run(ctx, norm, x, dy), plain, sums + rounding, sums);
    // Evaluation is the same.
    EXPECT_EQ(as_f64(norm->forward(ctx, x, Mode::eval)),
              as_f64(norm->forward(ctx, x, Mode::train)));
    // Control: statistics of another epsilon are others.
    const PlainLayerNorm other(as_f64(x), as_f64(norm.value(0)), as_f64(norm.value(1)), as_f64(dy),
                               1.0);
    EXPECT_FALSE(near(as_f64(norm->forward(ctx, x, Mode::eval)), other.y, 0.02));
  }
}

TEST(LayerNorm, GradientsMatchDifferences) {
  Context ctx;
  for (const Shape& shape : {Shape{4, 6}, Shape{2, 3, 5}}) {
    const std::int64_t c = shape[shape.ndim() - 1];
    Standalone<LayerNorm> norm(ctx, DType::f64, c, 0.01);
    set_parameters(ctx, norm, c);
    const Tensor x = random_tensor(ctx, shape, DType::f64, 1);
    const GradientCheckResult result = check_gradients(ctx, norm.layer, x);
    EXPECT_LE(result.worst, kGradientTolerance) << result.where;
  }
}

TEST(LayerNorm, KeepsItsDigitsWhereTheMeanIsLarge) {
  Context ctx;
  constexpr std::int64_t kWidth = 48;
  Standalone<LayerNorm> norm(ctx, DType::f32, kWidth);
  // Multiples of 1/64 around 1000 are f32 exactly, and so is their mean up to a rounding.
  Tensor x = Tensor::empty(ctx, Shape{3, kWidth});
  Random random(1);
  for (std::int64_t i = 0; i < x.numel(); ++i)
    x.view().data<float>()[i] = 1000 + std::round(64 * static_cast<float>(random.normal())) / 64;
  const std::vector<double> ones(kWidth, 1.0), zeros(kWidth), none(3 * kWidth);
  const PlainLayerNorm plain(values(ctx, x), ones, zeros, none, 1e-5);
  // The mean rounds to a neighbour of f32, 2^-15 beside 1000 at most, at a deviation of about 1.
  EXPECT_TRUE(near(values(ctx, norm->forward(ctx, x, Mode::eval)), plain.y, 0x1p-14));
}

TEST(LayerNorm, IsOfEachSampleAloneAndTakesAnEmptyBatch) {
  Context ctx;
  Standalone<LayerNorm> norm(ctx, DType::f32, 5);
  const Tensor x = random_tensor(ctx, Shape{6, 2, 5}, DType::f32, 1);
  const auto all = values(ctx, norm->forward(ctx, x, Mode::train));
  const auto one = values(ctx, norm->forward(ctx, x.view().slice(0, 2, 1), Mode::train));
  EXPECT_EQ(one, std::vector<double>(all.begin() + 20, all.begin() + 30));
  ops::fill(ctx, norm.grad(0), 9.0);
  ops::fill(ctx, norm.grad(1), 9.0);
  const Tensor none = Tensor::empty(ctx, Shape{0, 2, 5});
  EXPECT_EQ(norm->forward(ctx, none, Mode::train).shape(), none.shape());
  EXPECT_EQ(norm->backward(ctx, none, InputGrad::needed).shape(), none.shape());
  EXPECT_EQ(values(ctx, norm.grad(0)), std::vector<double>(5, 0.0));
  EXPECT_EQ(values(ctx, norm.grad(1)), std::vector<double>(5, 0.0));
}

TEST(LayerNorm, HasTheSameBitsAtEveryNumberOfThreads) {
  std::vector<Passes> results;
  for (const int threads : {1, 2, 3}) {
    Context ctx(Device::cpu(), {.threads = threads});
    Standalone<LayerNorm> norm(ctx, DType::f32, 130);
    const Tensor x = random_tensor(ctx, Shape{700, 130}, DType::f32, 1);
    results.push_back(run(ctx, norm, x, random_tensor(ctx, Shape{700, 130}, DType::f32, 2)));
  }
  for (const Passes& other : results) {
    EXPECT_EQ(other.y, results[0].y);
    EXPECT_EQ(other.dx, results[0].dx);
    EXPECT_EQ(other.scale_grad, results[0].scale_grad);
    EXPECT_EQ(other.shift_grad, results[0].shift_grad);
  }
}

TEST(LayerNorm, NanStaysInItsRow) {
  Context ctx;
  Standalone<LayerNorm> norm(ctx, DType::f32, 4);
  Tensor x = random_tensor(ctx, Shape{3, 4}, DType::f32, 1);
  x.view().data<float>()[5] = std::numeric_limits<float>::quiet_NaN();
  const auto y = values(ctx, norm->forward(ctx, x, Mode::train));
  for (std::size_t i = 0; i < y.size(); ++i) EXPECT_EQ(std::isnan(y[i]), i / 4 == 1) << i;
}

TEST(LayerNorm, IsPlannedWithWhatItKeeps) {
  Context ctx;
  auto net = std::make_unique<Sequential>();
  net->add<LayerNorm>("norm", 6).add<Flatten>("flatten").add<Linear>("fc", 40 * 6, 3);
  Model model(ctx, "rows", std::move(net), Shape{40, 6}, DType::f32, 1);
  const Tensor x = random_tensor(ctx, Shape{16, 40, 6}, DType::f32, 1);
  model.forward(ctx, x, Mode::train);
  model.backward(ctx, random_tensor(ctx, Shape{16, 3}, DType::f32, 2));
  const MemoryPlan plan = plan_memory(model, 16, Mode::train);
  EXPECT_EQ(plan.statistics, 2U * 16 * 40 * sizeof(float));
  EXPECT_EQ(model.allocated_bytes(), plan.held());
}

TEST(LayerNorm, RefusesWhatItCannotComputeWith) {
  Context ctx;
  EXPECT_THROW(LayerNorm(0), InvalidArgument);
  for (const double epsilon : {0.0, -1.0, std::numeric_limits<double>::infinity()})
    EXPECT_THROW(LayerNorm(3, epsilon), InvalidArgument);
  Standalone<LayerNorm> norm(ctx, DType::f32, 4);
  const Tensor x = Tensor::zeros(ctx, Shape{2, 3, 4}), wrong = Tensor::zeros(ctx, Shape{2, 4, 3});
  const std::string message = message_of([&] { norm->forward(ctx, wrong, Mode::train); });
  EXPECT_TRUE(contains(message, "[layer_norm] 'probe'"));
  EXPECT_TRUE(contains(message, "[2, 4, 3]"));
  EXPECT_THROW(norm->forward(ctx, Tensor::zeros(ctx, Shape{4}), Mode::train), InvalidArgument);
  EXPECT_THROW(norm->forward(ctx, Tensor::zeros(ctx, Shape{2, 4}, DType::f64), Mode::train),
               InvalidArgument);
  EXPECT_THROW(norm->backward(ctx, x, InputGrad::needed), InvalidArgument);
  norm->forward(ctx, x, Mode::train);
  EXPECT_THROW(norm->backward(ctx, wrong, InputGrad::needed), InvalidArgument);
  norm->forward(ctx, x, Mode::eval);
  EXPECT_THROW(norm->backward(ctx, x, InputGrad::needed), InvalidArgument);
}

}  // namespace
}  // namespace dkfac::nn
