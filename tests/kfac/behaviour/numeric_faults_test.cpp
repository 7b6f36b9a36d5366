#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/kfac/inverse.h"
#include "dkfac/kfac/statistics.h"

#include "kfac/inverse/layer_curvature.h"
#include "kfac/inverse/refresh.h"
#include "support/both_backends.h"
#include "support/fisher.h"
#include "support/natural_gradient.h"
#include "support/near.h"

// Numeric faults from the statistic to the preconditioned gradient of one layer, in f32.
namespace dkfac::kfac {
namespace {

using namespace testing::fisher;
using dkfac::testing::natural_gradient;
using testing::BothBackends;
using testing::eps;
using testing::values;

class NumericFaults : public BothBackends {
 protected:
  CurvatureOptions options_ = natural_gradient({.damping = 0.01, .statistics = {.new_weight = 1}});
  RefreshWorkers workers_{ctx};

  LayerCurvature make(const LayerSpec& spec) { return make_layer_curvature(ctx, spec, options_); }
  /// Every group of the factor has the statistic m.
  void merge(const Matrix& m, Factor& factor) {
    Vector all;
    for (int group = 0; group < factor.groups; ++group)
      for (const double x : packed(m)) all.push_back(x);
    ASSERT_TRUE(
        merge_factor(ctx, options_, tensor(ctx, all, {std::ssize(all)}, DType::f32), factor));
  }
  std::vector<InverseStage> refresh(LayerCurvature& layer) {
    std::vector<RefreshTask> tasks;
    add_refresh_tasks(ctx, options_, layer, {}, tasks);
    workers_.run(tasks);
    std::vector<InverseStage> stages;
    for (const RefreshTask& task : tasks) stages.push_back(task.stage);
    return stages;
  }
  Vector apply(const LayerSpec& spec, const LayerCurvature& layer, const Matrix& v) {
    Tensor x = tensor(ctx, v.v, {v.rows * v.cols}, DType::f32);
    apply_curvature(ctx, spec, options_, layer, x, {});
    return values(ctx, x);
  }

  void expect_finite_steps(const LayerSpec& spec) {
    Random random(3);
    const std::int64_t d = a_dim(spec), out = g_dim(spec);
    const Matrix xa = random_matrix(9, d, random), xg = random_matrix(9, out, random);
    const Matrix v = random_matrix(out * factor_groups(spec), d, random);
    for (const double scale_a : {1e-45, 1e-38, 1e-30, 1e-15, 1.0, 1e15, 1e30, 1e36, -0.0}) {
      for (const double scale_g : {1e-45, 1e-30, 1.0, 1e30}) {
        // Factors themselves of these sizes, beside which rounding makes the rest vanish.
        LayerCurvature layer = make(spec);
        Matrix a = second_moment(xa, 9), g = second_moment(xg, 9);
        for (double& x : a.v) x *= scale_a;
        for (double& x : g.v) x *= scale_g;
        merge(a, layer.a);
        merge(g, layer.g);
        const auto stages = refresh(layer);
        const Vector step = apply(spec, layer, v);
        for (const double x : step)
          EXPECT_TRUE(std::isfinite(x)) << scale_a << " " << scale_g << " stage "
                                        << static_cast<int>(std::max(stages[0], stages[1]));
      }
    }
  }
};
DKFAC_BOTH_BACKENDS(NumericFaults);

/// The reflection I - 2 u u' / u'u.
Matrix reflection_along(Vector u) {
  Matrix q = identity(static_cast<std::int64_t>(u.size()));
  double square = 0;
  for (const double x : u) square += x * x;
  add_outer(q, u, -2 / square);
  return q;
}
Matrix reflected_spectrum(const Matrix& q, const Vector& w) {
  Matrix m(q.rows, q.rows);
  for (std::int64_t i = 0; i < q.rows; ++i) add_outer(m, q.row(i), w[static_cast<std::size_t>(i)]);
  return m;
}

// D4: A has an eigenvalue of -1e-3, beside damping that repairs it, that does so ten times larger,
// and that does not at all.
TEST_P(NumericFaults, D4AnIndefiniteFactorStillGivesAStep) {
  Random random(1);
  const Matrix q = reflection_along({1, 2, -1, 3, 0.5, 1});
  const LinearSpec spec{.in = 6, .out = 3, .bias = false};
  const Vector w{-1e-3, 0.4, 0.8, 1, 2, 3};
  for (const auto& [shift, stage] : {std::pair(5e-3, InverseStage::damped),
                                     {3e-4, InverseStage::more_damped},
                                     {1e-5, InverseStage::clipped}}) {
    LayerCurvature layer = make(spec);
    merge(reflected_spectrum(q, w), layer.a);
    merge(identity(3), layer.g);
    // pi^2 is the mean eigenvalue of A beside 1 of G; the damping that gives A this shift.
    options_.damping = shift * shift / (7.199 / 6);
    EXPECT_EQ(refresh(layer)[0], stage) << shift;
    const Matrix v = random_matrix(3, 6, random);
    const double used = layer.a.shifts.data<double>()[0];
    Vector inverse_w = w;
    for (double& x : inverse_w)
      x = 1 / ((stage == InverseStage::clipped ? std::max(x, 0.0) : x) + used);
    // G is 1 + shift: only a factor.
    const Vector expected = multiply(v, reflected_spectrum(q, inverse_w)).v;
    const Vector step = apply(spec, layer, v);
    EXPECT_LE(std::acos(std::min(cosine(step, expected), 1.0)), 1e-3) << shift;
  }
}

// D4: an asymmetric factor cannot be represented: packing reads the lower triangle.
TEST_P(NumericFaults, D4AsymmetryIsLeftBehindByPacking) {
  Random random(2);
  Matrix m = random_spd(5, random);
  Matrix skewed = m;
  for (std::int64_t r = 0; r < 5; ++r)
    for (std::int64_t c = r + 1; c < 5; ++c) skewed(r, c) += 1e-3;
  const auto pack = [&](const Matrix& x) {
    Vector out(15);
    ops::pack_lower(ctx, x.view(), view_of(out.data(), {15}));
    return out;
  };
  EXPECT_EQ(pack(skewed), pack(m));
}

// D8: the operands of f16 are summed in f32, and the loss scale is gone before they are squared.
TEST_P(NumericFaults, D8SumsAndSquaresDoNotOverflowF16) {
  const std::int64_t positions = 401'408;  // conv1 of ResNet-50, 32 images; f16 ends at 65,504
  const LinearSpec spec{.in = 1, .out = 1, .bias = false};
  Tensor x = Tensor::empty(ctx, {positions, 1}, DType::f16);
  ops::fill(ctx, x, 1);
  Tensor a = Tensor::zeros(ctx, {1, 1}), g = Tensor::zeros(ctx, {1, 1});
  // Divided by 1 sample: the raw sum. Exact, as all partial sums are below 2^24.
  compute_a(ctx, spec, {.data = x, .global_batch = 1, .operand = {DType::f16, 1}}, 0, a);
  EXPECT_EQ(values(ctx, a)[0], 401'408);
  // A gradient of 1/2 behind a loss scale of 2^14: its square is beyond f16.
  ops::fill(ctx, x, 0x1p13);
  compute_g(ctx, spec,
            {.data = x,
             .global_batch = static_cast<double>(positions),
             .sample_scale = 0x1p-14,
             .operand = {DType::f16, 1}},
            0, g);
  // A running f32 sum of at most 1024 equal terms, and f64 above: 1024/2 eps.
  EXPECT_NEAR(values(ctx, g)[0], 0.25, 512 * eps<float> * 0.25);
}

// D14: magnitudes at the ends of f32, of a layer with large factors and one with many small ones.
TEST_P(NumericFaults, D14ExtremeDataGiveFiniteSteps) {
  expect_finite_steps(LinearSpec{.in = 5, .out = 4, .bias = false});
  expect_finite_steps(Conv2dSpec{
      .in = 3, .out = 3, .window = Window::square(3), .bias = false, .groups = 3});  // depthwise
}

// D14: damping at the ends of f32 beside groups of any magnitude: an inverse is finite, or the old
// one is kept, as for a factor of one group.
TEST_P(NumericFaults, D14ExtremeDampingOfSmallGroupsIsKeptOrFinite) {
  Random random(8);
  const Conv2dSpec spec{.in = 2, .out = 2, .window = Window::square(3), .bias = false, .groups = 2};
  const Matrix m = second_moment(random_matrix(4, 9, random), 4);
  for (const double scale : {0.0, 1e-38, 1.0, 1e30}) {
    for (const double shift : {1e-45, 1e-40, 1e-38, 1e-20, 1.0, 1e30, 1e39}) {
      SCOPED_TRACE(detail::concat("scale ", scale, ", shift ", shift));
      LayerCurvature layer = make(spec);
      Matrix scaled = m;
      for (double& x : scaled.v) x *= scale;
      merge(scaled, layer.a);
      ops::fill(ctx, layer.a.inverse, 7);
      for (int group = 0; group < 2; ++group)
        layer.a.requested_damping.data<double>()[group] = shift;
      std::vector<RefreshTask> tasks{{&layer, &layer.a}};
      workers_.run(tasks);
      const bool room = shift >= 1e-20 && shift < 1e39;  // else 1/shift overflows, or shift does
      EXPECT_TRUE(room || tasks[0].stage == InverseStage::kept);
      for (const double x : values(ctx, layer.a.inverse))
        EXPECT_TRUE(tasks[0].stage == InverseStage::kept ? x == 7 : std::isfinite(x)) << x;
    }
  }
}

// In f64 the loops of small groups round like any other.
TEST_P(NumericFaults, SmallGroupsInF64AreInvertedOrLeftToTheFallback) {
  options_.dtype = DType::f64;
  Matrix ones(9, 9);
  for (double& x : ones.v) x = 1;
  for (const double shift : {1e-17, 1e-15, 1e-12}) {
    LayerCurvature layer = make(
        Conv2dSpec{.in = 2, .out = 2, .window = Window::square(3), .bias = false, .groups = 2});
    Vector both = packed(ones);
    for (const double x : packed(ones)) both.push_back(x);
    ops::copy(ctx, view_of(both.data(), {std::ssize(both)}), layer.a.average);
    for (int group = 0; group < 2; ++group) layer.a.requested_damping.data<double>()[group] = shift;
    std::vector<RefreshTask> tasks{{&layer, &layer.a}};
    workers_.run(tasks);
    const double used = layer.a.shifts.data<double>()[0];
    if (shift == 1e-12) {
      EXPECT_EQ(tasks[0].stage, InverseStage::damped);
      EXPECT_EQ(used, shift);
    } else {
      EXPECT_NE(tasks[0].stage, InverseStage::damped);  // below d eps tr M / 0.1 = 1.8e-13
    }
    if (tasks[0].stage == InverseStage::kept) continue;
    // (I - ones / (9 + s)) / s: the largest elements are known.
    EXPECT_NEAR(values(ctx, layer.a.inverse)[0] * used, 8.0 / 9, 0.1) << shift;
  }
}

// D14: moving a factor c from A to G changes pi and nothing else; c is a power of two here, so that
// f32 has no part in it, and 1e6 for its rounding.
TEST_P(NumericFaults, D14MovingAScaleFromAToGChangesNothing) {
  Random random(4);
  const LinearSpec spec{.in = 5, .out = 4, .bias = false};
  const Matrix a = random_spd(5, random), g = random_spd(4, random),
               v = random_matrix(4, 5, random);
  const auto step = [&](double c) {
    LayerCurvature layer = make(spec);
    Matrix ca = a, cg = g;
    for (double& x : ca.v) x *= c;
    for (double& x : cg.v) x /= c;
    merge(ca, layer.a);
    merge(cg, layer.g);
    refresh(layer);
    return apply(spec, layer, v);
  };
  const Vector expected = step(1);
  for (const double c : {0x1p-60, 0x1p40, 1e6, 1e-6, 1e15})
    EXPECT_LE(relative_norm(step(c), expected), c == 1e6 || c == 1e-6 || c == 1e15 ? 2e-6 : 1e-6)
        << c;
}

// D7: the extremes of damping and width, through the layer: finite, and with much damping the
// gradient divided by it.
TEST_P(NumericFaults, D7AnyDampingAndWidthOneGiveFiniteSteps) {
  Random random(5);
  for (const std::int64_t width : {1, 8, 64}) {
    const LinearSpec spec{.in = width, .out = 2, .bias = false};
    const Matrix rows = random_matrix(std::max<std::int64_t>(width / 8, 1), width, random);
    const Matrix v = random_matrix(2, width, random);
    for (int power = -12; power <= 12; power += 3) {
      options_.damping = std::pow(10.0, power);
      LayerCurvature layer = make(spec);
      merge(second_moment(rows, 1), layer.a);
      merge(second_moment(random_matrix(1, 2, random), 1), layer.g);  // a batch of one
      refresh(layer);
      const Vector step = apply(spec, layer, v);
      for (const double x : step) EXPECT_TRUE(std::isfinite(x)) << width << " 1e" << power;
      if (power == 12) {
        // sqrt(lambda) is 1e6 beside traces below 100.
        Vector expected = v.v;
        for (double& x : expected) x /= 1e12;
        EXPECT_LE(relative_norm(step, expected), 1e-3);
      }
    }
  }
}

}  // namespace
}  // namespace dkfac::kfac
