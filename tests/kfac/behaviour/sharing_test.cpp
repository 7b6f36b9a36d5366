// Weights at several positions: expand and reduce (Eschenhagen et al. 2023), and the rows of both.
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"
#include "dkfac/kfac/statistics.h"

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

const std::vector<WeightSharing> kBoth = {WeightSharing::expand, WeightSharing::reduce};

/// One layer with its rows by definition: for every group, inputs (with the bias) and gradients,
/// `positions` consecutive ones to a sample.
struct Example {
  LayerSpec spec;
  Shape x_shape, dy_shape;
  Vector x, dy;
  std::int64_t samples = 0, positions = 1;
  std::vector<Matrix> inputs = {}, gradients = {};
};

Example linear_example(std::int64_t positions, bool bias, Random& random) {
  Example e{LinearSpec{5, 3, bias}, {4, positions, 5}, {4, positions, 3}, {}, {}, 4, positions};
  e.x = random_vector(4 * positions * 5, random);
  e.dy = random_vector(4 * positions * 3, random);
  Matrix x(4 * positions, 5), dy(4 * positions, 3);
  x.v = e.x;
  dy.v = e.dy;
  e.inputs = {bias ? join_bias(x, Vector(static_cast<std::size_t>(x.rows), 1.0)) : x};
  e.gradients = {dy};
  return e;
}

Example conv_example(const Conv2dSpec& spec, Random& random) {
  const Images in{3, 7, 6}, out = output_of(spec, in);
  Example e{spec,
            activation_shape(spec.layout, in, spec.in),
            activation_shape(spec.layout, out, spec.out),
            random_vector(in.n * in.h * in.w * spec.in, random),
            random_vector(out.n * out.h * out.w * spec.out, random),
            in.n,
            out.h * out.w};
  for (std::int64_t i = 0; i < spec.groups; ++i) {
    e.inputs.push_back(naive_patches(spec, in, e.x, spec.layout, i));
    e.gradients.push_back(naive_positions(spec, out, e.dy, i));
  }
  return e;
}

std::vector<Example> examples(bool with_groups) {
  Random random(1);
  std::vector<Example> out;
  for (const bool bias : {false, true}) {
    for (const std::int64_t positions : {1, 6})
      out.push_back(linear_example(positions, bias, random));
    for (const Layout layout : {Layout::nhwc, Layout::nchw}) {
      Conv2dSpec s{.in = 4, .out = 6, .window = Window::square(3, 1, 1)};
      s.layout = layout;
      s.bias = bias;
      out.push_back(conv_example(s, random));
      s.window.stride_h = 2;
      s.window.stride_w = 3;
      out.push_back(conv_example(s, random));
      s.window.dilation_h = 2;
      s.window.dilation_w = 2;
      s.window.kernel_w = 2;
      out.push_back(conv_example(s, random));
      Conv2dSpec same{.in = 4,
                      .out = 2,
                      .window = {.kernel_h = 2, .kernel_w = 4, .dilation_h = 3},
                      .bias = bias,
                      .layout = layout,
                      .same = true};
      out.push_back(conv_example(same, random));
      out.push_back(conv_example({.in = 3, .out = 2, .bias = bias, .layout = layout}, random));
      // A kernel far larger than the image: most windows are empty.
      out.push_back(conv_example(
          {.in = 2, .out = 2, .window = Window::square(9, 1, 4), .bias = bias, .layout = layout},
          random));
      if (!with_groups) continue;
      s.groups = 2;
      out.push_back(conv_example(s, random));
      Conv2dSpec depthwise{.in = 18,
                           .out = 18,
                           .window = Window::square(3, 1, 1),
                           .bias = bias,
                           .layout = layout,
                           .groups = 18};
      out.push_back(conv_example(depthwise, random));
    }
  }
  return out;
}

/// Sums of the rows of each sample, times `scale`.
Matrix per_sample(const Matrix& rows, std::int64_t positions, double scale) {
  Matrix m(rows.rows / positions, rows.cols);
  for (std::int64_t r = 0; r < rows.rows; ++r) {
    for (std::int64_t c = 0; c < rows.cols; ++c) m(r / positions, c) += scale * rows(r, c);
  }
  return m;
}

/// A and G of one group by their definitions.
Matrix naive_a(const Example& e, std::size_t group, WeightSharing sharing, double batch) {
  const double positions = static_cast<double>(e.positions);
  if (sharing == WeightSharing::expand) return second_moment(e.inputs[group], batch * positions);
  return second_moment(per_sample(e.inputs[group], e.positions, 1 / positions), batch);
}
Matrix naive_g(const Example& e, std::size_t group, WeightSharing sharing, double batch, double s) {
  if (sharing == WeightSharing::expand) return second_moment(e.gradients[group], batch / (s * s));
  return second_moment(per_sample(e.gradients[group], e.positions, 1), batch / (s * s));
}

class Sharing : public BothBackends {
 protected:
  /// compute(factor) into NaN; the symmetric matrices of all groups, one after the other.
  template <class Compute>
  Vector factor_of(int groups, std::int64_t d, DType dtype, Compute compute) {
    Tensor f = Tensor::empty(ctx, groups == 1 ? Shape{d, d} : Shape{groups, d, d}, dtype);
    ops::fill(ctx, f, kNan);
    compute(f.view());
    Vector out;
    const TensorView all = f.view().reshape({groups * d, d});
    for (std::int64_t g = 0; g < groups; ++g) {
      const Vector one = symmetric(ctx, all.slice(0, g * d, d)).v;
      out.insert(out.end(), one.begin(), one.end());
    }
    return out;
  }
  Vector a_of(const Example& e, WeightSharing sharing, double batch, DType type = DType::f64,
              Operand operand = kF64, OperandStats stats = {}) {
    const Tensor x = tensor(ctx, e.x, e.x_shape, type);
    return factor_of(factor_groups(e.spec), a_dim(e.spec), type, [&](TensorView a) {
      compute_a(ctx, e.spec,
                {.data = x,
                 .global_batch = batch,
                 .operand = operand,
                 .stats = stats,
                 .sharing = sharing},
                0, a);
    });
  }
  Vector g_of(const Example& e, WeightSharing sharing, double batch, double s,
              DType type = DType::f64, Operand operand = kF64) {
    const Tensor dy = tensor(ctx, e.dy, e.dy_shape, type);
    return factor_of(factor_groups(e.spec), g_dim(e.spec), type, [&](TensorView g) {
      compute_g(ctx, e.spec,
                {.data = dy,
                 .global_batch = batch,
                 .sample_scale = s,
                 .operand = operand,
                 .sharing = sharing},
                0, g);
    });
  }
};
DKFAC_BOTH_BACKENDS(Sharing);

TEST_P(Sharing, EqualsItsDefinition) {
  for (const Example& e : examples(true)) {
    SCOPED_TRACE(describe(e.spec));
    for (const WeightSharing sharing : kBoth) {
      const double batch = 4.5, s = 0.5;  // a share of 2/3 of a batch of 6.75 samples
      Vector a, g;
      for (std::size_t i = 0; i < e.inputs.size(); ++i) {
        const Vector one_a = naive_a(e, i, sharing, batch).v;
        const Vector one_g = naive_g(e, i, sharing, batch, s).v;
        a.insert(a.end(), one_a.begin(), one_a.end());
        g.insert(g.end(), one_g.begin(), one_g.end());
      }
      EXPECT_TRUE(near(a_of(e, sharing, batch), a, 1e-12));
      EXPECT_TRUE(near(g_of(e, sharing, batch, s), g, 1e-12));
      // f32: 8 n eps over sums of all rows; gradients may cancel over the positions of a sample.
      const double f32 = 8 * static_cast<double>(e.samples * e.positions) * eps<float>;
      EXPECT_TRUE(near(a_of(e, sharing, batch, DType::f32, {DType::f32, 1}), a, f32));
      EXPECT_TRUE(near(g_of(e, sharing, batch, s, DType::f32, {DType::f32, 1}), g, f32));
    }
  }
}

TEST_P(Sharing, FormsAgreeAtOnePositionOnly) {
  for (const Example& e : examples(true)) {
    SCOPED_TRACE(describe(e.spec));
    const Vector expand = a_of(e, kBoth[0], 4), reduce = a_of(e, kBoth[1], 4);
    if (e.positions == 1) {
      EXPECT_TRUE(near(reduce, expand, 1e-14));
      EXPECT_TRUE(near(g_of(e, kBoth[1], 4, 1), g_of(e, kBoth[0], 4, 1), 1e-14));
    } else {
      EXPECT_FALSE(near(reduce, expand, 0.1));
      EXPECT_FALSE(near(g_of(e, kBoth[1], 4, 1), g_of(e, kBoth[0], 4, 1), 0.1));
    }
  }
}

TEST_P(Sharing, MiddleDimensionsAreAllPositions) {
  Random random(2);
  const Vector x = random_vector(2 * 3 * 4 * 5, random);
  const auto a_of_shape = [&](Shape shape) {
    return factor_of(1, 6, DType::f64, [&](TensorView a) {
      compute_a(ctx, LinearSpec{5, 2},
                {.data = view_of(x.data(), shape), .global_batch = 2, .operand = kF64}, 0, a);
    });
  };
  const Vector flat = a_of_shape({2, 12, 5});
  EXPECT_EQ(a_of_shape({2, 3, 4, 5}), flat);
  EXPECT_FALSE(near(a_of_shape({24, 5}), flat, 0.1));  // 24 samples of a batch of 2
  EXPECT_THROW(a_of_shape({2, 5, 12}), InvalidArgument);
}

TEST_P(Sharing, RoundsTheMeanThatItMultiplies) {
  Random random(3);
  const Example e = linear_example(6, true, random);
  Matrix rounded = per_sample(e.inputs[0], 6, 1.0 / 6);
  double largest = 0;
  for (double& v : rounded.v) {
    v = static_cast<double>(to_float(to_bf16(v)));
    largest = std::max(largest, std::abs(v));
  }
  Tensor maximum = Tensor::zeros(ctx, {1});
  const Vector a = a_of(e, kBoth[1], 4, DType::f64, {DType::bf16, 1}, {maximum.view(), {}});
  EXPECT_TRUE(near(a, second_moment(rounded, 4).v, 1e-14));
  EXPECT_LE(*maximum.data<float>(), 1.01 * largest);  // of means, not of inputs
}

class FactorRows : public Sharing {};
DKFAC_BOTH_BACKENDS(FactorRows);

TEST_P(FactorRows, HaveTheFactorAsTheirSquare) {
  for (const Example& e : examples(false)) {
    SCOPED_TRACE(describe(e.spec));
    for (const WeightSharing sharing : kBoth) {
      for (const double scale : {1.0, 4.0}) {
        const Operand operand{scale == 1 ? DType::f64 : DType::bf16, scale};
        const std::int64_t rows = e.samples * (sharing == kBoth[0] ? e.positions : 1);
        const auto square = [&](std::int64_t d, auto write) {
          Matrix x(rows + 2, d);
          x.v.assign(x.v.size(), 7);
          EXPECT_EQ(write(x.view()), rows);
          EXPECT_EQ(x(rows, 0), 7);  // rows behind them are left alone
          x.v.resize(static_cast<std::size_t>(rows * d));
          x.rows = rows;
          return second_moment(x, 1).v;
        };
        const auto x = view_of(e.x.data(), e.x_shape), dy = view_of(e.dy.data(), e.dy_shape);
        const Vector a = square(a_dim(e.spec), [&](TensorView out) {
          return a_rows(ctx, e.spec,
                        {.data = x, .global_batch = 4.5, .operand = operand, .sharing = sharing},
                        out);
        });
        const Vector g = square(g_dim(e.spec), [&](TensorView out) {
          return g_rows(ctx, e.spec,
                        {.data = dy,
                         .global_batch = 4.5,
                         .sample_scale = 3,
                         .operand = operand,
                         .sharing = sharing},
                        out);
        });
        EXPECT_TRUE(near(a, a_of(e, sharing, 4.5, DType::f64, operand), 1e-12));
        EXPECT_TRUE(near(g, g_of(e, sharing, 4.5, 3, DType::f64, operand), 1e-12));
      }
    }
  }
}

TEST_P(FactorRows, RefuseWhatDoesNotFit) {
  Random random(4);
  const Matrix data = random_matrix(4, 3, random);
  Matrix rows(3, 4), wrong(4, 3);
  const LinearSpec spec{3, 2};
  const auto run = [&](const LayerSpec& layer, ConstTensorView x, TensorView out) {
    return a_rows(ctx, layer, {.data = x, .global_batch = 4, .operand = kF64}, out);
  };
  EXPECT_EQ(run(spec, data.view().slice(0, 0, 3), rows.view()), 3);
  EXPECT_EQ(run(spec, data.view().slice(0, 0, 0), rows.view()), 0);
  EXPECT_THROW((void)run(spec, data.view(), rows.view()), InvalidArgument);   // 4 rows in 3
  EXPECT_THROW((void)run(spec, data.view(), wrong.view()), InvalidArgument);  // no bias column
  const Conv2dSpec groups{.in = 4, .out = 4, .groups = 2};
  const Vector x(16);
  EXPECT_THROW((void)run(groups, view_of(x.data(), {1, 2, 2, 4}), rows.view()), InvalidArgument);
}

}  // namespace
}  // namespace dkfac::kfac
