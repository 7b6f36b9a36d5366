#include "dkfac/kfac/statistics.h"

#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"

#include "kfac/each_layout.h"
#include "kfac/f64_operand.h"
#include "support/both_backends.h"
#include "support/fisher.h"
#include "support/naive_conv.h"
#include "support/near.h"
#include "support/not_finite.h"

namespace dkfac::kfac {
namespace {

using namespace testing::fisher;
using testing::BothBackends;
using testing::eps;
using testing::near;
using testing::values;

std::vector<Conv2dSpec> conv_cases() {
  const std::vector<Conv2dSpec> shapes = {
      {.in = 3, .out = 4, .window = Window::square(3, 1, 1)},
      {.in = 2, .out = 3, .window = Window::square(3, 2, 1)},
      {.in = 5, .out = 2},
      {.in = 4, .out = 3, .window = {.stride_h = 2, .stride_w = 2}},
      {.in = 2,
       .out = 5,
       .window = {.kernel_h = 5, .kernel_w = 2, .stride_h = 1, .stride_w = 3, .pad_h = 2}},
      {.in = 1, .out = 1, .window = Window::square(7, 2, 3)},
      {.in = 3, .out = 2, .window = {.kernel_h = 3, .kernel_w = 2, .pad_h = 1, .dilation_h = 2}},
      {.in = 2, .out = 2, .window = {.kernel_h = 2, .kernel_w = 4}, .same = true},
      {.in = 8, .out = 2, .window = Window::square(3), .same = true},
      {.in = 8,
       .out = 2,
       .window = {.kernel_h = 3,
                  .kernel_w = 3,
                  .pad_h = 1,
                  .pad_w = 1,
                  .dilation_h = 2,
                  .dilation_w = 2}},
      {.in = 2,
       .out = 2,
       .window = {.kernel_h = 2, .kernel_w = 3, .dilation_h = 3, .dilation_w = 2},
       .same = true},
  };
  return testing::in_each_layout(shapes);
}

/// compute_a into a matrix poisoned with NaN, as a full symmetric one.
Matrix a_of(Context& ctx, const LayerSpec& spec, ConstTensorView x, double global_batch,
            Operand operand = kF64, DType dtype = DType::f64) {
  const std::int64_t d = a_dim(spec);
  Tensor a = Tensor::empty(ctx, {d, d}, dtype);
  ops::fill(ctx, a, kNan);
  compute_a(ctx, spec, {.data = x, .global_batch = global_batch, .operand = operand}, 0, a);
  return symmetric(ctx, a);
}

Matrix g_of(Context& ctx, const LayerSpec& spec, ConstTensorView dy, double global_batch, double s,
            Operand operand = kF64, DType dtype = DType::f64) {
  const std::int64_t d = g_dim(spec);
  Tensor g = Tensor::empty(ctx, {d, d}, dtype);
  ops::fill(ctx, g, kNan);
  compute_g(ctx, spec,
            {.data = dy, .global_batch = global_batch, .sample_scale = s, .operand = operand}, 0,
            g);
  return symmetric(ctx, g);
}

class Curvature : public BothBackends {};
DKFAC_BOTH_BACKENDS(Curvature);

TEST_P(Curvature, LinearFactorsEqualTheirDefinition) {
  Random random(1);
  for (const bool bias : {false, true}) {
    for (const std::int64_t n : {1, 2, 33}) {
      const LinearSpec spec{7, 5, bias};
      const Matrix x = random_matrix(n, 7, random), dy = random_matrix(n, 5, random);
      const Matrix inputs = bias ? join_bias(x, Vector(static_cast<std::size_t>(n), 1.0)) : x;
      const double s = 3, global = 40;
      const Matrix a = second_moment(inputs, global), g = second_moment(dy, global / (s * s));
      // 8 n eps: sums of n products in any order.
      const double tolerance = 8 * static_cast<double>(n) * eps<double>;
      EXPECT_TRUE(near(a_of(ctx, spec, x.view(), 40).v, a.v, tolerance)) << n << bias;
      EXPECT_TRUE(near(g_of(ctx, spec, dy.view(), 40, s).v, g.v, tolerance)) << n << bias;
    }
  }
}

TEST_P(Curvature, LinearFactorsTakeRowStrides) {
  Random random(2);
  const Matrix wide = random_matrix(6, 10, random);
  const ConstTensorView x = wide.view().slice(1, 2, 4);
  Matrix dense(6, 4);
  dense.v = values(ctx, x);
  // 48 eps: 8 n eps with n = 6.
  EXPECT_TRUE(near(a_of(ctx, LinearSpec{4, 2, false}, x, 6).v, second_moment(dense, 6).v,
                   48 * eps<double>));
  EXPECT_TRUE(near(g_of(ctx, LinearSpec{2, 4, false}, x, 6, 1).v, second_moment(dense, 6).v,
                   48 * eps<double>));
}

TEST_P(Curvature, ConvolutionFactorsEqualNaiveLoops) {
  Random random(3);
  const Images in{3, 7, 6};
  for (const Conv2dSpec& spec : conv_cases()) {
    SCOPED_TRACE(describe(spec));
    const Images out = output_of(spec, in);
    const Vector x = random_vector(in.n * in.h * in.w * spec.in, random);
    const Vector dy = random_vector(out.n * out.h * out.w * spec.out, random);
    const Matrix patches = naive_patches(spec, in, x, spec.layout);
    const Matrix rows = naive_positions(spec, out, dy);
    const double s = 0.5, positions = static_cast<double>(out.h * out.w);
    const Matrix a = second_moment(patches, 5 * positions), g = second_moment(rows, 5 / (s * s));
    const auto x_view = view_of(x.data(), activation_shape(spec.layout, in, spec.in));
    const auto dy_view = view_of(dy.data(), activation_shape(spec.layout, out, spec.out));
    EXPECT_TRUE(near(a_of(ctx, spec, x_view, 5).v, a.v, 1e-12));
    EXPECT_TRUE(near(g_of(ctx, spec, dy_view, 5, s).v, g.v, 1e-12));

    // f32 data and factors: 8 rows eps.
    const double f32 = 8 * static_cast<double>(rows.rows) * eps<float>;
    const Tensor x32 = tensor(ctx, x, x_view.shape(), DType::f32);
    const Tensor dy32 = tensor(ctx, dy, dy_view.shape(), DType::f32);
    const Operand operand{DType::f32, 1};
    EXPECT_TRUE(near(a_of(ctx, spec, x32, 5, operand, DType::f32).v, a.v, f32));
    EXPECT_TRUE(near(g_of(ctx, spec, dy32, 5, s, operand, DType::f32).v, g.v, f32));
  }
}

TEST_P(Curvature, TheOtherLayoutsColumnsWouldBeAnotherFactor) {
  Random random(4);
  const Images in{3, 7, 6};
  for (const Conv2dSpec& spec : conv_cases()) {
    if (spec.in == 1 || spec.window.kernel_h == 1) continue;  // the orders coincide
    const Vector x = random_vector(in.n * in.h * in.w * spec.in, random);
    const Layout other = spec.layout == Layout::nhwc ? Layout::nchw : Layout::nhwc;
    const Images out = output_of(spec, in);
    const Matrix wrong =
        second_moment(naive_patches(spec, in, x, other), 5 * static_cast<double>(out.h * out.w));
    const auto view = view_of(x.data(), activation_shape(spec.layout, in, spec.in));
    EXPECT_FALSE(near(a_of(ctx, spec, view, 5).v, wrong.v, 0.1)) << describe(spec);
  }
}

TEST_P(Curvature, PartsOfRanksAddUpToTheWhole) {
  Random random(5);
  const Conv2dSpec spec{.in = 3, .out = 4, .window = Window::square(3, 1, 1)};
  const Vector x = random_vector(5 * 36 * 3, random), dy = random_vector(5 * 36 * 4, random);
  const auto x_view = view_of(x.data(), {5, 6, 6, 3});
  const auto dy_view = view_of(dy.data(), {5, 6, 6, 4});
  Vector a(28 * 28), g(16);
  std::int64_t first = 0;
  for (const std::int64_t count : {2, 0, 3}) {  // a rank may have no sample
    const Matrix part_a = a_of(ctx, spec, x_view.slice(0, first, count), 5);
    const Matrix part_g = g_of(ctx, spec, dy_view.slice(0, first, count), 5, 2);
    for (std::size_t i = 0; i < a.size(); ++i) a[i] += part_a.v[i];
    for (std::size_t i = 0; i < g.size(); ++i) g[i] += part_g.v[i];
    first += count;
  }
  // 8 rows eps with 5 * 36 rows.
  EXPECT_TRUE(near(a, a_of(ctx, spec, x_view, 5).v, 8 * 180 * eps<double>));
  EXPECT_TRUE(near(g, g_of(ctx, spec, dy_view, 5, 2).v, 8 * 180 * eps<double>));
}

TEST_P(Curvature, BetaKeepsAShareOfWhatWasThere) {
  Random random(6);
  const Matrix x = random_matrix(4, 3, random);
  for (const double scale : {1.0, 16.0}) {
    Matrix a = random_matrix(4, 4, random);
    const Matrix old = symmetric(ctx, a.view());
    const Operand operand{DType::f64, scale};
    const Matrix fresh = a_of(ctx, LinearSpec{3, 2}, x.view(), 4);
    compute_a(ctx, LinearSpec{3, 2}, {.data = x.view(), .global_batch = 4, .operand = operand}, 0.7,
              a.view());
    const Matrix merged = symmetric(ctx, a.view());
    for (std::size_t i = 0; i < merged.v.size(); ++i) {
      // 8 eps: one more sum, of numbers below about 4.
      EXPECT_NEAR(merged.v[i], 0.7 * old.v[i] + fresh.v[i], 32 * eps<double>) << scale;
    }
  }
}

TEST_P(Curvature, DuplicatedSamplesGiveTheSameStatistics) {
  Random random(7);
  const LinearSpec spec{4, 3, true};
  const Matrix x = random_matrix(6, 4, random), g = random_matrix(6, 3, random);
  Matrix x2(12, 4), g2(12, 3);
  for (std::size_t copy = 0; copy < 2; ++copy) {
    std::copy(x.v.begin(), x.v.end(),
              x2.v.begin() + static_cast<std::ptrdiff_t>(copy * x.v.size()));
    std::copy(g.v.begin(), g.v.end(),
              g2.v.begin() + static_cast<std::ptrdiff_t>(copy * g.v.size()));
  }
  // Gradients of a mean loss shrink with the batch; s undoes it.
  const auto statistics = [&](const Matrix& inputs, Matrix gradients) {
    const std::int64_t n = inputs.rows;
    for (double& e : gradients.v) e /= static_cast<double>(n);
    const double s = sample_gradient_scale(LossReduction::local_mean, n, n, 1);
    return std::pair(a_of(ctx, spec, inputs.view(), static_cast<double>(n)),
                     g_of(ctx, spec, gradients.view(), static_cast<double>(n), s));
  };
  const auto [a1, g1] = statistics(x, g);
  const auto [a2, g2_] = statistics(x2, g2);
  // 8 n eps with n = 12.
  EXPECT_TRUE(near(a2.v, a1.v, 96 * eps<double>));
  EXPECT_TRUE(near(g2_.v, g1.v, 96 * eps<double>));
}

TEST_P(Curvature, LossReductionsAndLossScalesAreEquivalent) {
  Random random(8);
  const LinearSpec spec{4, 3, true};
  const Matrix g = random_matrix(8, 3, random);  // gradients of single samples
  const std::vector<std::int64_t> batches = {3, 5};
  const Matrix expected = second_moment(g, 8);
  for (const double loss_scale : {1.0, 1024.0}) {
    for (const auto reduction :
         {LossReduction::local_mean, LossReduction::global_mean, LossReduction::sum}) {
      Vector total(9);
      std::int64_t first = 0;
      for (const std::int64_t batch : batches) {
        const double divisor = reduction == LossReduction::local_mean
                                   ? static_cast<double>(batch)
                                   : (reduction == LossReduction::global_mean ? 8.0 : 1.0);
        Matrix recorded(batch, 3);
        for (std::int64_t i = 0; i < batch * 3; ++i) {
          recorded.v[static_cast<std::size_t>(i)] =
              g.v[static_cast<std::size_t>(first * 3 + i)] * loss_scale / divisor;
        }
        const double s = sample_gradient_scale(reduction, batch, 8, loss_scale);
        const Matrix part = g_of(ctx, spec, recorded.view(), 8, s);
        for (std::size_t i = 0; i < 9; ++i) total[i] += part.v[i];
        first += batch;
      }
      // 8 n eps with n = 8.
      EXPECT_TRUE(near(total, expected.v, 64 * eps<double>)) << static_cast<int>(reduction);
    }
  }
}

TEST(SampleGradientScale, UndoesTheReduction) {
  EXPECT_EQ(sample_gradient_scale(LossReduction::local_mean, 32, 128, 4), 8);
  EXPECT_EQ(sample_gradient_scale(LossReduction::global_mean, 32, 128, 4), 32);
  EXPECT_EQ(sample_gradient_scale(LossReduction::sum, 32, 128, 4), 0.25);
  EXPECT_THROW((void)sample_gradient_scale(LossReduction::sum, 32, 0, 1), InvalidArgument);
  EXPECT_THROW((void)sample_gradient_scale(LossReduction::sum, -1, 8, 1), InvalidArgument);
  EXPECT_THROW((void)sample_gradient_scale(LossReduction::sum, 8, 8, 0), InvalidArgument);
  EXPECT_THROW((void)sample_gradient_scale(LossReduction::sum, 8, 8, kNan), InvalidArgument);
}

TEST_P(Curvature, WrongArgumentsAreRefused) {
  const LinearSpec linear{3, 2, false};
  const Conv2dSpec conv{.in = 3, .out = 2, .bias = false};
  Matrix x(4, 3), a(3, 3), g(2, 2);
  const auto image = x.view().reshape({1, 2, 2, 3});
  const auto run_a = [&](const LayerSpec& spec, ConstTensorView data, double batch, Operand operand,
                         TensorView out) {
    compute_a(ctx, spec, {.data = data, .global_batch = batch, .operand = operand}, 0, out);
  };
  EXPECT_NO_THROW(run_a(linear, x.view(), 4, kF64, a.view()));
  EXPECT_NO_THROW(run_a(conv, image, 1, kF64, a.view()));
  EXPECT_THROW(run_a(linear, x.view(), 0, kF64, a.view()), InvalidArgument);
  EXPECT_THROW(run_a(linear, x.view(), 4, {DType::i32, 1}, a.view()), InvalidArgument);
  EXPECT_THROW(run_a(linear, x.view(), 4, {DType::f16, 3}, a.view()), InvalidArgument);
  EXPECT_THROW(run_a(linear, x.view(), 4, {DType::f16, kNan}, a.view()), InvalidArgument);
  EXPECT_THROW(run_a(linear, x.view(), 4, {DType::f16, 0x1p80}, a.view()), InvalidArgument);
  EXPECT_THROW(run_a(linear, x.view(), 4, kF64, g.view()), InvalidArgument);
  EXPECT_THROW(run_a(linear, x.view().flat(), 4, kF64, a.view()), InvalidArgument);
  EXPECT_THROW(run_a(linear, x.view().reshape({3, 4}), 4, kF64, a.view()), InvalidArgument);
  EXPECT_THROW(run_a(conv, x.view(), 4, kF64, a.view()), InvalidArgument);
  EXPECT_THROW(run_a(conv, x.view().reshape({1, 3, 2, 2}), 4, kF64, a.view()), InvalidArgument);
  EXPECT_THROW(run_a(NormSpec{.channels = 3}, x.view(), 4, kF64, a.view()), InvalidArgument);
  EXPECT_THROW(run_a(PlainSpec{}, x.view(), 4, kF64, a.view()), InvalidArgument);
  const auto run_g = [&](const LayerSpec& spec, ConstTensorView data, double s, TensorView out) {
    compute_g(ctx, spec, {.data = data, .global_batch = 4, .sample_scale = s, .operand = kF64}, 0,
              out);
  };
  EXPECT_NO_THROW(run_g(linear, x.view().reshape({6, 2}), 1, g.view()));
  EXPECT_THROW(run_g(linear, x.view(), 1, g.view()), InvalidArgument);
  EXPECT_THROW(run_g(linear, x.view().reshape({6, 2}), kNan, g.view()), InvalidArgument);
  EXPECT_THROW(run_g(linear, x.view().reshape({6, 2}), 1, a.view()), InvalidArgument);
  EXPECT_THROW(run_g(conv, x.view().reshape({6, 2}), 1, g.view()), InvalidArgument);
  EXPECT_THROW(run_g(conv, image, 1, g.view()), InvalidArgument);
  EXPECT_THROW(run_g(NormSpec{.channels = 3}, image, 1, g.view()), InvalidArgument);
}

}  // namespace
}  // namespace dkfac::kfac
