// Factors of convolutions with several groups: one pair for each.
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"
#include "dkfac/core/threads.h"
#include "dkfac/kfac/statistics.h"

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

/// Few wide groups, many narrow ones (more than a vector holds, and fewer), depthwise with and
/// without a channel multiplier, each under several geometries.
std::vector<Conv2dSpec> cases() {
  std::vector<Conv2dSpec> shapes;
  for (const auto& [in, out, groups] :
       {std::array{4, 6, 2}, {9, 3, 3}, {16, 16, 16}, {21, 21, 21}, {8, 24, 8}, {36, 18, 18}}) {
    Conv2dSpec s{.in = in, .out = out, .window = Window::square(3, 1, 1)};
    s.groups = groups;
    shapes.push_back(s);
    s.window.stride_h = 2;
    s.window.stride_w = 3;
    s.window.kernel_w = 2;
    shapes.push_back(s);
    s.window.dilation_h = 2;
    s.window.stride_h = 1;
    shapes.push_back(s);
    shapes.push_back({.in = in, .out = out, .groups = groups});
    shapes.push_back({.in = in,
                      .out = out,
                      .window = {.kernel_h = 2, .kernel_w = 4, .dilation_w = 2},
                      .same = true,
                      .groups = groups});
  }
  return testing::in_each_layout(shapes);
}

/// The lower triangles of f[groups,d,d] as full matrices, one after the other.
Vector symmetric_groups(Context& ctx, ConstTensorView f) {
  Vector out;
  for (std::int64_t g = 0; g < f.dim(0); ++g) {
    const Vector one = symmetric(ctx, f.slice(0, g, 1).reshape({f.dim(1), f.dim(2)})).v;
    out.insert(out.end(), one.begin(), one.end());
  }
  return out;
}

void append(Vector& to, const Vector& more) { to.insert(to.end(), more.begin(), more.end()); }

class GroupedCurvature : public BothBackends {
 protected:
  Vector a_of(const Conv2dSpec& spec, ConstTensorView x, double batch, Operand operand = kF64,
              DType dtype = DType::f64) {
    const std::int64_t d = a_dim(spec);
    Tensor a = Tensor::empty(ctx, {spec.groups, d, d}, dtype);
    ops::fill(ctx, a, kNan);
    compute_a(ctx, spec, {.data = x, .global_batch = batch, .operand = operand}, 0, a);
    return symmetric_groups(ctx, a);
  }
  Vector g_of(const Conv2dSpec& spec, ConstTensorView dy, double batch, double s,
              Operand operand = kF64, DType dtype = DType::f64) {
    const std::int64_t d = g_dim(spec);
    Tensor g = Tensor::empty(ctx, {spec.groups, d, d}, dtype);
    ops::fill(ctx, g, kNan);
    compute_g(ctx, spec, {.data = dy, .global_batch = batch, .sample_scale = s, .operand = operand},
              0, g);
    return symmetric_groups(ctx, g);
  }
};
DKFAC_BOTH_BACKENDS(GroupedCurvature);

TEST_P(GroupedCurvature, EqualsNaiveLoopsForEveryGroup) {
  Random random(1);
  const Images in{3, 7, 6};
  for (const Conv2dSpec& spec : cases()) {
    SCOPED_TRACE(describe(spec));
    const Images out = output_of(spec, in);
    const Vector x = random_vector(in.n * in.h * in.w * spec.in, random);
    const Vector dy = random_vector(out.n * out.h * out.w * spec.out, random);
    const double s = 0.5, positions = static_cast<double>(out.h * out.w);
    Vector a, g;
    for (std::int64_t i = 0; i < spec.groups; ++i) {
      append(a, second_moment(naive_patches(spec, in, x, spec.layout, i), 5 * positions).v);
      append(g, second_moment(naive_positions(spec, out, dy, i), 5 / (s * s)).v);
    }
    const auto x_view = view_of(x.data(), activation_shape(spec.layout, in, spec.in));
    const auto dy_view = view_of(dy.data(), activation_shape(spec.layout, out, spec.out));
    EXPECT_TRUE(near(a_of(spec, x_view, 5), a, 1e-12));
    EXPECT_TRUE(near(g_of(spec, dy_view, 5, s), g, 1e-12));

    // f32 data and factors: 8 rows eps.
    const double f32 = 8 * static_cast<double>(out.n * out.h * out.w) * eps<float>;
    const Tensor x32 = tensor(ctx, x, x_view.shape(), DType::f32);
    const Tensor dy32 = tensor(ctx, dy, dy_view.shape(), DType::f32);
    const Operand operand{DType::f32, 1};
    EXPECT_TRUE(near(a_of(spec, x32, 5, operand, DType::f32), a, f32));
    EXPECT_TRUE(near(g_of(spec, dy32, 5, s, operand, DType::f32), g, f32));
  }
}

TEST_P(GroupedCurvature, TheOtherOrdersWouldBeOtherFactors) {
  Random random(2);
  const Images in{3, 7, 6};
  for (const Conv2dSpec& spec : cases()) {
    const Images out = output_of(spec, in);
    const double divisor = 5 * static_cast<double>(out.h * out.w);
    const Vector x = random_vector(in.n * in.h * in.w * spec.in, random);
    const Vector found =
        a_of(spec, view_of(x.data(), activation_shape(spec.layout, in, spec.in)), 5);
    const Layout other = spec.layout == Layout::nhwc ? Layout::nchw : Layout::nhwc;
    Vector columns, groups;
    for (std::int64_t i = 0; i < spec.groups; ++i) {
      append(columns, second_moment(naive_patches(spec, in, x, other, i), divisor).v);
      append(
          groups,
          second_moment(naive_patches(spec, in, x, spec.layout, spec.groups - 1 - i), divisor).v);
    }
    // The orders of the columns coincide for one channel or one kernel element.
    if (spec.in > spec.groups && spec.window.kernel_h * spec.window.kernel_w > 1) {
      EXPECT_FALSE(near(found, columns, 0.1)) << describe(spec);
    }
    EXPECT_FALSE(near(found, groups, 0.01)) << describe(spec);
  }
}

TEST_P(GroupedCurvature, BetaScaleAndPanelsActOnEveryGroup) {
  Random random(3);
  for (const std::int64_t groups : {2, 20}) {
    Conv2dSpec spec{.in = 20, .out = 20, .window = Window::square(3, 1, 1)};
    spec.groups = static_cast<int>(groups);
    const Images in{2, 5, 5};
    const Vector x = random_vector(2 * 25 * 20, random);
    const auto view = view_of(x.data(), activation_shape(spec.layout, in, 20));
    const Vector fresh = a_of(spec, view, 2);
    const std::int64_t d = a_dim(spec);
    for (const double scale : {1.0, 16.0}) {
      const Vector start = random_vector(groups * d * d, random);
      Tensor a = tensor(ctx, start, {groups, d, d});
      const Vector old = symmetric_groups(ctx, a);
      compute_a(ctx, spec, {.data = view, .global_batch = 2, .operand = {DType::f64, scale}}, 0.7,
                a);
      const Vector merged = symmetric_groups(ctx, a);
      for (std::size_t i = 0; i < merged.size(); ++i) {
        // 8 rows eps of numbers below about 10.
        EXPECT_NEAR(merged[i], 0.7 * old[i] + fresh[i], 8 * 50 * 10 * eps<double>) << scale;
      }
    }
  }
}

TEST_P(GroupedCurvature, IsTheSameForAnyNumberOfThreads) {
  Random random(4);
  const int before = threads();
  Conv2dSpec spec{.in = 18, .out = 18, .window = Window::square(3, 1, 1)};
  spec.groups = 18;
  const Images in{4, 16, 16};
  Vector x = random_vector(4 * 256 * 18, random);
  for (double& e : x) e = std::round(4 * e);  // sums of small integers are exact
  const auto view = view_of(x.data(), activation_shape(spec.layout, in, 18));
  set_threads(1);
  const Vector one = a_of(spec, view, 1);
  for (const int count : {2, 3, 7}) {
    set_threads(count);
    EXPECT_EQ(a_of(spec, view, 1), one) << count;
  }
  set_threads(before);
}

TEST_P(GroupedCurvature, RefusesAFactorOfAnotherShape) {
  const Conv2dSpec spec{.in = 4, .out = 4, .bias = false, .groups = 2};
  const Vector x(16);
  const auto view = view_of(x.data(), {1, 2, 2, 4});
  Matrix a(4, 2);
  EXPECT_NO_THROW(compute_a(ctx, spec, {.data = view, .global_batch = 1, .operand = kF64}, 0,
                            a.view().reshape({2, 2, 2})));
  EXPECT_THROW(
      compute_a(ctx, spec, {.data = view, .global_batch = 1, .operand = kF64}, 0, a.view()),
      InvalidArgument);
  EXPECT_THROW(compute_a(ctx, spec, {.data = view, .global_batch = 1, .operand = kF64}, 0,
                         a.view().reshape({1, 2, 4})),
               InvalidArgument);
}

}  // namespace
}  // namespace dkfac::kfac
