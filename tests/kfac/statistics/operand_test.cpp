#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/half.h"
#include "dkfac/kfac/statistics.h"

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

double rounded(DType type, double x) {
  return static_cast<double>(type == DType::f16 ? to_float(to_f16(x)) : to_float(to_bf16(x)));
}

/// Half the distance of 1 to its upper neighbour: the relative error of one rounding.
double unit_roundoff(DType type) { return type == DType::f16 ? 0x1p-11 : 0x1p-8; }

double max_abs(const Vector& x) {
  double m = 0;
  for (const double e : x) m = std::max(m, std::abs(e));
  return m;
}

Conv2dSpec conv_spec(Layout layout, bool bias) {
  return {.in = 3, .out = 2, .window = Window::square(3, 1, 1), .bias = bias, .layout = layout};
}

const Images kImages{4, 5, 6};

struct Recorded {
  Matrix factor;
  double max_abs = -1, underflow = 0;
};

class OperandRounding : public BothBackends {
 protected:
  Recorded a_of(const LayerSpec& spec, ConstTensorView x, double batch, Operand operand,
                DType dtype = DType::f64) {
    return run(a_dim(spec), dtype, [&](TensorView out, OperandStats stats) {
      compute_a(ctx, spec, {.data = x, .global_batch = batch, .operand = operand, .stats = stats},
                0, out);
    });
  }
  Recorded g_of(const LayerSpec& spec, ConstTensorView dy, double batch, double s, Operand operand,
                DType dtype = DType::f64) {
    return run(g_dim(spec), dtype, [&](TensorView out, OperandStats stats) {
      compute_g(ctx, spec,
                {.data = dy,
                 .global_batch = batch,
                 .sample_scale = s,
                 .operand = operand,
                 .stats = stats},
                0, out);
    });
  }

 private:
  template <class Compute>
  Recorded run(std::int64_t d, DType dtype, Compute compute) {
    Tensor out = Tensor::zeros(ctx, {d, d}, dtype);
    ops::fill(ctx, out, std::numeric_limits<double>::quiet_NaN());
    Tensor stats = Tensor::zeros(ctx, {2});
    compute(out, OperandStats{stats.view().slice(0, 0, 1), stats.view().slice(0, 1, 1)});
    const Vector found = values(ctx, stats);
    return {symmetric(ctx, out), found[0], found[1]};
  }
};
DKFAC_BOTH_BACKENDS(OperandRounding);

TEST(OperandScale, BringsTheMaximumIntoF16sMiddle) {
  for (const double m : {1e-9, 3e-5, 0.5, 1.0, 1.5, 2.0, 777.0, 65504.0, 1e9}) {
    const double scaled = operand_scale(DType::f16, m) * m;
    EXPECT_GE(scaled, 0x1p8) << m;
    EXPECT_LT(scaled, 0x1p12) << m;
    int exponent = 0;
    EXPECT_EQ(std::frexp(operand_scale(DType::f16, m), &exponent), 0.5) << m;
  }
  for (const double m : {0.0, -1.0, kInf, std::nan("")}) {
    EXPECT_EQ(operand_scale(DType::f16, m), 1) << m;
  }
  for (const DType type : {DType::f64, DType::f32, DType::bf16}) {
    EXPECT_EQ(operand_scale(type, 1e-9), 1) << type;
  }
}

TEST(OperandScale, StaysWhereItsSquareIsANormalF32) {
  for (const double m : {1e-300, 1e-30, 1e30, 1e300}) {
    const double scale = operand_scale(DType::f16, m);
    EXPECT_GT(scale * scale, static_cast<double>(std::numeric_limits<float>::min())) << m;
    EXPECT_LT(scale * scale, static_cast<double>(std::numeric_limits<float>::max())) << m;
  }
}

TEST_P(OperandRounding, EqualsTheProductOfRoundedData) {
  Random random(1);
  for (const DType type : {DType::f16, DType::bf16}) {
    for (const Layout layout : {Layout::nhwc, Layout::nchw}) {
      for (const bool bias : {false, true}) {
        const Conv2dSpec spec = conv_spec(layout, bias);
        Vector x = random_vector(4 * 30 * 3, random, 1e-3);
        Vector dy = random_vector(4 * 30 * 2, random, 1e-3);
        const Operand operand{type, operand_scale(type, max_abs(x))};
        const Recorded a =
            a_of(spec, view_of(x.data(), activation_shape(layout, kImages, 3)), 4, operand);
        const Recorded g =
            g_of(spec, view_of(dy.data(), activation_shape(layout, kImages, 2)), 4, 3, operand);
        for (double& e : x) e = rounded(type, e * operand.scale) / operand.scale;
        for (double& e : dy) e = rounded(type, e * operand.scale) / operand.scale;
        const Matrix patches = naive_patches(spec, kImages, x, layout);
        const Matrix rows = naive_positions(spec, kImages, dy);
        EXPECT_TRUE(near(a.factor.v, second_moment(patches, 120).v, 1e-12)) << describe(spec);
        EXPECT_TRUE(near(g.factor.v, second_moment(rows, 4.0 / 9).v, 1e-12)) << describe(spec);
      }
    }
  }
}

TEST_P(OperandRounding, ErrsByNoMoreThanItsEpsilon) {
  Random random(2);
  const LinearSpec spec{6, 2, true};
  const Matrix x = random_matrix(50, 6, random);
  const Matrix exact = second_moment(join_bias(x, Vector(50, 1.0)), 50);
  for (const DType type : {DType::f16, DType::bf16}) {
    const Operand operand{type, operand_scale(type, max_abs(x.v))};
    const Matrix a = a_of(spec, x.view(), 50, operand).factor;
    double largest = 0;
    for (std::int64_t i = 0; i < 7; ++i) {
      for (std::int64_t j = 0; j < 7; ++j) {
        // Cauchy-Schwarz: sum |x_i x_j| is at most the geometric mean of the diagonal entries; two
        // operands err by u each, the factor 1.01 covers u^2.
        const double scale = std::sqrt(exact(i, i) * exact(j, j));
        const double error = std::abs(a(i, j) - exact(i, j)) / scale;
        EXPECT_LE(error, 2 * 1.01 * unit_roundoff(type)) << i << " " << j;
        largest = std::max(largest, error);
      }
    }
    EXPECT_GT(largest, 0.01 * unit_roundoff(type)) << "nothing was rounded to " << type;
  }
}

TEST_P(OperandRounding, DoesNotDependOnThePowerOfTwo) {
  Random random(3);
  for (const DType dtype : {DType::f64, DType::f32}) {
    for (const Layout layout : {Layout::nhwc, Layout::nchw}) {
      const Conv2dSpec spec = conv_spec(layout, true);
      Vector x = random_vector(4 * 30 * 3, random);
      for (double& e : x) e = std::copysign(0.25 + std::abs(e), e);  // no subnormal f16
      const Tensor data = tensor(ctx, x, activation_shape(layout, kImages, 3), dtype);
      const Matrix one = a_of(spec, data, 4, {DType::f16, 1}, dtype).factor;
      const LinearSpec linear{30, 6, true};
      const auto rows = data.view().reshape({12, 30}), dy = data.view().reshape({60, 6});
      const Matrix linear_one = a_of(linear, rows, 4, {DType::f16, 1}, dtype).factor;
      const Matrix g_one = g_of(linear, dy, 4, 3, {DType::f16, 1}, dtype).factor;
      for (const double scale : {0x1p-8, 0.5, 2.0, 64.0, 0x1p10}) {
        EXPECT_EQ(a_of(spec, data, 4, {DType::f16, scale}, dtype).factor.v, one.v) << scale;
        EXPECT_EQ(a_of(linear, rows, 4, {DType::f16, scale}, dtype).factor.v, linear_one.v);
        EXPECT_EQ(g_of(linear, dy, 4, 3, {DType::f16, scale}, dtype).factor.v, g_one.v) << scale;
      }
      // Control: a scale that pushes data below f16's range does change the result.
      EXPECT_NE(a_of(linear, rows, 4, {DType::f16, 0x1p-20}, dtype).factor.v, linear_one.v);
    }
  }
}

TEST_P(OperandRounding, KeepsTheOnesOfTheBiasAtEveryScale) {
  Random random(4);
  const LinearSpec spec{3, 2, true};
  for (const double size : {1e-9, 1.0, 1e12}) {
    const Matrix x = random_matrix(10, 3, random, size);
    const Operand operand{DType::f16, operand_scale(DType::f16, max_abs(x.v))};
    const Tensor x32 = tensor(ctx, x.v, {10, 3}, DType::f32);
    const Matrix a = a_of(spec, x32, 20, operand, DType::f32).factor;
    EXPECT_EQ(a(3, 3), 0.5) << size;
    for (std::int64_t i = 0; i < 3; ++i) {
      double sum = 0;
      for (std::int64_t n = 0; n < 10; ++n) {
        sum += rounded(DType::f16, x(n, i) * operand.scale) / operand.scale;
      }
      // 10 numbers are added, of at most about 3 size each.
      EXPECT_NEAR(a(3, i), sum / 20, 10 * 3 * size * eps<float>) << size;
    }
  }
}

TEST_P(OperandRounding, LargeDataNeverOverflows) {
  Random random(5);
  const LinearSpec spec{4, 2, true};
  const Matrix x = random_matrix(20, 4, random, 1e8);
  const Operand good{DType::f16, operand_scale(DType::f16, max_abs(x.v))};
  // A stale scale of 1 saturates: wrong, but finite.
  for (const Operand& operand : {good, Operand{DType::f16, 1}}) {
    const Recorded a = a_of(spec, x.view(), 20, operand);
    for (const double e : a.factor.v) EXPECT_TRUE(std::isfinite(e)) << operand.scale;
    EXPECT_EQ(a.underflow, 0);
  }
  const Matrix exact = second_moment(join_bias(x, Vector(20, 1.0)), 20);
  EXPECT_TRUE(near(a_of(spec, x.view(), 20, good).factor.v, exact.v, 2.02 * 0x1p-11));
  EXPECT_FALSE(near(a_of(spec, x.view(), 20, {DType::f16, 1}).factor.v, exact.v, 0.1));
}

TEST_P(OperandRounding, CountsWhatUnderflows) {
  const LinearSpec spec{3, 2, false};
  const Vector x = {1e-9, 0, -1e-9, 1, 1e-9, -1, 0, 2, 1e-12};
  const auto view = view_of(x.data(), {3, 3});
  const Recorded unscaled = a_of(spec, view, 3, {DType::f16, 1});
  EXPECT_EQ(unscaled.underflow, 4);  // zeros of the data do not count
  EXPECT_EQ(static_cast<float>(unscaled.max_abs), 2.0F);
  EXPECT_EQ(a_of(spec, view, 3, {DType::f16, 0x1p10}).underflow, 1);
  EXPECT_EQ(a_of(spec, view, 3, {DType::bf16, 1}).underflow, 0);
  EXPECT_EQ(a_of(spec, view, 3, {DType::f64, 1}).underflow, 0);
}

TEST_P(OperandRounding, SixteenBitDataIsTakenAsItIs) {
  Random random(6);
  for (const DType type : {DType::bf16, DType::f16}) {
    for (const Layout layout : {Layout::nhwc, Layout::nchw}) {
      const Conv2dSpec spec = conv_spec(layout, true);
      Vector x = random_vector(4 * 30 * 3, random), dy = random_vector(4 * 30 * 2, random);
      for (double& e : x) e = rounded(type, e);
      for (double& e : dy) e = rounded(type, e);
      const Tensor x16 = tensor(ctx, x, activation_shape(layout, kImages, 3), type);
      const Tensor dy16 = tensor(ctx, dy, activation_shape(layout, kImages, 2), type);
      const Recorded a = a_of(spec, x16, 4, {type, 1}), g = g_of(spec, dy16, 4, 1, {type, 1});
      EXPECT_TRUE(
          near(a.factor.v, second_moment(naive_patches(spec, kImages, x, layout), 120).v, 1e-12));
      EXPECT_TRUE(near(g.factor.v, second_moment(naive_positions(spec, kImages, dy), 4).v, 1e-12));
      EXPECT_EQ(a.max_abs, max_abs(x));
      EXPECT_EQ(a.underflow, 0);
    }
  }
}

TEST_P(OperandRounding, ManyPanelsAreOneBatch) {
  // 20 samples of 256 KiB in f64 exceed what is converted at once.
  Random random(7);
  const Images images{20, 64, 64};
  Vector x = random_vector(20 * 64 * 64 * 8, random);
  for (double& e : x) e = rounded(DType::bf16, e);
  x[x.size() - 5] = -100;  // the maximum is in the last panel
  for (const Layout layout : {Layout::nhwc, Layout::nchw}) {
    const Shape shape = activation_shape(layout, images, 8);
    const Tensor x16 = tensor(ctx, x, shape, DType::bf16), x64 = tensor(ctx, x, shape);
    const Conv2dSpec spec{.in = 8, .out = 8, .bias = true, .layout = layout};
    const Recorded a = a_of(spec, x16, 20, {DType::bf16, 1});
    const Recorded scaled = a_of(spec, x16, 20, {DType::f64, 4});
    const Recorded whole = a_of(spec, x64, 20, {DType::f64, 1});
    const Recorded g = g_of(spec, x16, 20, 1, {DType::bf16, 1});
    EXPECT_EQ(a.max_abs, 100);
    EXPECT_TRUE(near(a.factor.v, whole.factor.v, 1e-12));
    EXPECT_TRUE(near(scaled.factor.v, whole.factor.v, 1e-12));
    EXPECT_EQ(g.max_abs, 100);
    for (std::int64_t i = 0; i < 8; ++i) {  // A of a 1x1 convolution is the mean of what G sums
      EXPECT_NEAR(g.factor(i, i), whole.factor(i, i) * 4096, 1e-12 * g.factor(i, i));
    }
  }
}

}  // namespace
}  // namespace dkfac::kfac
