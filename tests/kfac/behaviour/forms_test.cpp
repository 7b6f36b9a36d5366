#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/threads.h"
#include "dkfac/kfac/inverse.h"

#include "kfac/inverse/layer_curvature.h"
#include "kfac/inverse/refresh.h"
#include "support/both_backends.h"
#include "support/fisher.h"
#include "support/natural_gradient.h"
#include "support/near.h"

// Every form of a factor, alone and in every combination, gives the results of dense inverses.
namespace dkfac::kfac {
namespace {

using namespace testing::fisher;
using testing::BothBackends;
using testing::eps;
using testing::near;
using testing::values;

class Forms : public BothBackends {
 protected:
  /// One layer's factors with statistics from rows, in the given forms, refreshed.
  LayerCurvature make(const LinearSpec& spec, const FactorForm* a, const FactorForm* g,
                      const Matrix& xa, const Matrix& xg, std::int64_t max_rows) {
    CurvatureOptions options = options_;
    options.statistics.low_rank = false;
    LayerCurvature layer;
    set(layer.a, a_dim(spec), a, xa, max_rows);
    set(layer.g, g_dim(spec), g, xg, max_rows);
    std::vector<RefreshTask> tasks;
    add_refresh_tasks(ctx, options, layer, {}, tasks);
    RefreshWorkers(ctx).run(tasks);
    for (const RefreshTask& task : tasks) EXPECT_EQ(task.stage, InverseStage::damped);
    EXPECT_TRUE(layer.a.valid && layer.g.valid);
    return layer;
  }
  void set(Factor& factor, std::int64_t dim, const FactorForm* form, const Matrix& x,
           std::int64_t max_rows) {
    factor.dim = dim;
    factor.form = form;
    factor.rows = form == FactorForm::low_rank ? max_rows : 0;
    factor.average = Tensor::zeros(ctx, {factor.statistic_numel()}, DType::f64);
    factor.inverse = Tensor::zeros(ctx, factor.inverse_shape(), DType::f64);
    factor.shifts = Tensor::zeros(ctx, {1}, DType::f64);
    factor.requested_damping = Tensor::zeros(ctx, {1}, DType::f64);
    factor.stored_form = Tensor::zeros(ctx, {1}, DType::i32);
    Vector statistic = form == FactorForm::low_rank ? x.v : packed(second_moment(x, 1));
    statistic.resize(static_cast<std::size_t>(factor.statistic_numel()));  // rows that are zero
    const CurvatureOptions latest{.statistics = {.new_weight = 1}, .dtype = DType::f64};
    EXPECT_TRUE(merge_factor(
        ctx, latest, tensor(ctx, statistic, {factor.statistic_numel()}, DType::f64), factor));
  }
  CurvatureOptions options_{.damping = 0.02, .dtype = DType::f64};
};
DKFAC_BOTH_BACKENDS(Forms);

struct Size {
  std::int64_t in, out;
  bool bias;
};

TEST_P(Forms, EveryMixtureSolvesTheDampedSystem) {
  Random random(5);
  const FactorForm* const kForms[] = {FactorForm::inverse, FactorForm::cholesky,
                                      FactorForm::low_rank};
  // Widths within one block, with a bias that is a block of its own (65), and of several blocks.
  for (const Size& size : {Size{7, 5, true}, Size{7, 1, false}, Size{64, 33, true},
                           Size{70, 40, false}, Size{33, 96, true}, Size{300, 70, true}}) {
    const LinearSpec spec{.in = size.in, .out = size.out, .bias = size.bias};
    const std::int64_t d = a_dim(spec), rows = 6;
    const Matrix xa = random_matrix(rows, d, random), xg = random_matrix(rows, size.out, random);
    const Matrix v = random_matrix(size.out, d, random);
    const Matrix a = second_moment(xa, 1), g = second_moment(xg, 1);
    const auto split = *split_damping(options_.damping, trace(a), d, trace(g), size.out);
    const Matrix expected = multiply(multiply(inverse(plus_diagonal(g, split.g)), v),
                                     inverse(plus_diagonal(a, split.a)));
    // Condition of both: at most 1 + trace/shift. 16 n eps each.
    const double condition = 2 + trace(a) / split.a + trace(g) / split.g;
    const double tolerance = 16 * static_cast<double>(d + size.out) * eps<double> * condition;
    for (const FactorForm* fa : kForms) {
      for (const FactorForm* fg : kForms) {
        const LayerCurvature layer = make(spec, fa, fg, xa, xg, rows + 3);
        Matrix weight = v;
        Vector bias;
        if (size.bias) std::tie(weight, bias) = split_bias(v);
        apply_curvature(ctx, spec, options_, layer, weight.view().flat(),
                        size.bias ? view_of(bias.data(), {size.out}) : TensorView{});
        const Matrix all = size.bias ? join_bias(weight, bias) : weight;
        EXPECT_TRUE(near(all.v, expected.v, tolerance))
            << "d " << d << ", out " << size.out << ", forms " << fa->name << " " << fg->name;
        // Control: the undamped direction is far from it.
        EXPECT_FALSE(near(v.v, expected.v, 0.1));
      }
    }
  }
}

TEST_P(Forms, SolvesInPartsAsInOnePiece) {
  Random random(9);
  const LinearSpec spec{.in = 260, .out = 190};  // 261 wide: the bias is in a block with others
  const Matrix xa = random_matrix(6, 261, random), xg = random_matrix(6, 190, random);
  const LayerCurvature layer = make(spec, FactorForm::cholesky, FactorForm::cholesky, xa, xg, 6);
  const auto [v, bias] = split_bias(random_matrix(190, 261, random));
  const int before = threads();
  const auto solve = [&](int count) {
    Matrix weight = v;
    Vector rest = bias;
    set_threads(count);
    apply_curvature(ctx, spec, options_, layer, weight.view().flat(), view_of(rest.data(), {190}));
    set_threads(before);
    return join_bias(weight, rest);
  };
  const Matrix one = solve(1), three = solve(3);
  // The same sums in other orders: 8 n eps for the longest, times the condition of both factors.
  const Matrix a = second_moment(xa, 1), g = second_moment(xg, 1);
  const auto split = *split_damping(options_.damping, trace(a), 261, trace(g), 190);
  const double condition = 2 + trace(a) / split.a + trace(g) / split.g;
  EXPECT_TRUE(near(three.v, one.v, 8 * 261 * eps<double> * condition));
  EXPECT_FALSE(near(one.v, join_bias(v, bias).v, 0.1));
}

TEST_P(Forms, LowRankOfNoRowsDividesByTheShift) {
  const LinearSpec spec{.in = 4, .out = 3, .bias = false};
  Random random(6);
  LayerCurvature layer = make(spec, FactorForm::low_rank, FactorForm::inverse,
                              random_matrix(2, 4, random), random_matrix(2, 3, random), 2);
  ops::fill(ctx, layer.a.average, 0);
  layer.a.stale = layer.g.stale = true;
  std::vector<RefreshTask> tasks;
  add_refresh_tasks(ctx, options_, layer, {}, tasks);
  RefreshWorkers(ctx).run(tasks);
  Matrix v = random_matrix(3, 4, random);
  const Matrix before = v;
  apply_curvature(ctx, spec, options_, layer, v.view().flat(), {});
  // Zero curvature: dW / lambda (D5). 8 eps: two divisions by roots.
  for (std::size_t i = 0; i < v.v.size(); ++i)
    EXPECT_NEAR(v.v[i], before.v[i] / 0.02, 8 * eps<double> * std::abs(v.v[i]));
}

TEST_P(Forms, LowRankKeepsItsInverseWhenTheRowsChange) {
  // Rows come in more often than inverses: the inverse must not mix old and new ones.
  const LinearSpec spec{.in = 9, .out = 3, .bias = false};
  Random random(7);
  LayerCurvature layer = make(spec, FactorForm::low_rank, FactorForm::inverse,
                              random_matrix(2, 9, random), random_matrix(2, 3, random), 2);
  Matrix before = random_matrix(3, 9, random), after = before;
  apply_curvature(ctx, spec, options_, layer, before.view().flat(), {});
  const CurvatureOptions latest{.statistics = {.new_weight = 1}, .dtype = DType::f64};
  ASSERT_TRUE(
      merge_factor(ctx, latest, tensor(ctx, random_vector(18, random), {18}, DType::f64), layer.a));
  apply_curvature(ctx, spec, options_, layer, after.view().flat(), {});
  EXPECT_EQ(before.v, after.v);
}

TEST(FactorPlan, ChoosesTheCheapestFormOverALife) {
  CurvatureOptions options = testing::natural_gradient({.statistics = {.new_weight = 1}});
  const LinearSpec narrow{.in = 4608, .out = 512, .bias = false, .max_rows = 128};
  EXPECT_EQ(plan_a(narrow, options).form, FactorForm::low_rank);
  EXPECT_EQ(plan_a(narrow, options).rows, 128);
  EXPECT_EQ(plan_a(narrow, options).statistic_numel(), 128 * 4608);
  EXPECT_EQ(plan_g(narrow, options).form, FactorForm::low_rank);
  LinearSpec many = narrow;
  many.max_rows = 4000;  // too many rows to pay
  EXPECT_EQ(plan_a(many, options).form, FactorForm::cholesky);
  many.max_rows = 0;  // not known
  EXPECT_EQ(plan_a(many, options).form, FactorForm::cholesky);
  CurvatureOptions off = options;
  off.statistics.low_rank = false;
  EXPECT_EQ(plan_a(narrow, off).form, FactorForm::cholesky);
  CurvatureOptions averaged = options;
  averaged.statistics.new_weight = 0.5;
  EXPECT_EQ(plan_a(narrow, averaged).form, FactorForm::cholesky);
  CurvatureOptions adaptive = options;
  adaptive.refresh.staleness = Staleness::adaptive;
  EXPECT_NE(plan_a(narrow, adaptive).form, FactorForm::low_rank);
  // A long life pays for the explicit inverse, and sooner where it is applied to more columns.
  const LinearSpec square{.in = 512, .out = 512, .bias = false};
  for (const auto& [interval, form] :
       {std::pair(1, FactorForm::cholesky), {2, FactorForm::cholesky}, {8, FactorForm::inverse}}) {
    CurvatureOptions life = testing::natural_gradient();
    life.refresh.inverse_interval = interval;
    EXPECT_EQ(plan_a(square, life).form, form) << interval;
    // An inverse lives as long when it is the statistic that is rarely new.
    std::swap(life.refresh.inverse_interval, life.refresh.statistics_interval);
    EXPECT_EQ(plan_a(square, life).form, form) << interval;
  }
  // The widest factor of ResNet-50, refreshed every 100 steps: solving would cost more by then.
  const CurvatureOptions rare{.refresh = {.inverse_interval = 100}};
  EXPECT_EQ(plan_a(narrow, rare).form, FactorForm::inverse);
  CurvatureOptions eigen = options;
  eigen.inverse.method = InverseMethod::eigen;
  EXPECT_EQ(plan_a(narrow, eigen).form, FactorForm::eigen);
  EXPECT_EQ(plan_g(narrow, eigen).form, FactorForm::eigen);
}

TEST(FactorPlan, TellsTheWidthOfWhatIsFactorised) {
  FactorPlan plan{.dim = 4608, .groups = 1, .form = FactorForm::cholesky, .rows = 0};
  EXPECT_EQ(plan.factorised(), 4608);
  plan.form = FactorForm::low_rank;
  plan.rows = 128;
  EXPECT_EQ(plan.factorised(), 128);
}

TEST(FactorPlan, KnowsTheFullFisherOfABatchNorm) {
  CurvatureOptions options;
  EXPECT_FALSE(plan_g(NormSpec{.channels = 5}, options).is_set());
  options.statistics.norm_fisher = NormFisher::full;
  EXPECT_EQ(plan_g(NormSpec{.channels = 5}, options).dim, 10);
  EXPECT_EQ(plan_g(NormSpec{.channels = 5, .scale = false}, options).dim, 5);
  EXPECT_FALSE(plan_a(NormSpec{.channels = 5}, options).is_set());
  EXPECT_FALSE(plan_g(PlainSpec{.weight = 3}, options).is_set());
}

TEST(FactorPlan, HasNoCholeskyFactorOnAGpu) {
  const Device gpu = Device::cuda();
  CurvatureOptions options = testing::natural_gradient();
  options.statistics.new_weight = 1;
  options.statistics.low_rank = false;
  const LinearSpec wide{.in = 4607, .out = 512, .max_rows = 128};
  EXPECT_EQ(plan_a(wide, options).form, FactorForm::cholesky);
  EXPECT_EQ(plan_a(wide, options, gpu).form, FactorForm::inverse);
  options.statistics.low_rank = true;
  EXPECT_EQ(plan_a(wide, options, gpu).form, FactorForm::low_rank);
  options.inverse.method = InverseMethod::eigen;
  EXPECT_EQ(plan_a(wide, options, gpu).form, FactorForm::eigen);
  options.statistics.norm_fisher = NormFisher::full;
  EXPECT_EQ(plan_g(NormSpec{.channels = 5}, options).form, FactorForm::cholesky);
  EXPECT_EQ(plan_g(NormSpec{.channels = 5}, options, gpu).form, FactorForm::inverse);
}

TEST(FactorPlan, HasTheSameSizesOnADevice) {
  const Device gpu = Device::cuda();
  int rows_kept = 0, triangles = 0;
  for (const int interval : {1, 2, 4, 10})
    for (std::int64_t rows = 8; rows <= 256; rows += 8)
      for (const std::int64_t out : {10, 100, 400}) {
        CurvatureOptions options;
        options.statistics.new_weight = 1;
        options.refresh.inverse_interval = interval;
        const LinearSpec spec{.in = 200, .out = out, .max_rows = rows};
        for (const auto& plan : {plan_a, plan_g}) {
          const FactorPlan here = plan(spec, options, Device::cpu());
          const FactorPlan there = plan(spec, options, gpu);
          EXPECT_EQ(there.statistic_numel(), here.statistic_numel()) << rows << ' ' << out;
          EXPECT_EQ(there.inverse_shape(), here.inverse_shape()) << rows << ' ' << out;
          EXPECT_NE(there.form, FactorForm::cholesky);
          rows_kept += there.form == FactorForm::low_rank;
          triangles += here.form == FactorForm::cholesky;
        }
      }
  EXPECT_GT(rows_kept, 0);
  EXPECT_GT(triangles, 0);
}

TEST_P(Forms, GroupsHaveInversesOfTheirOwn) {
  Random random(8);
  for (const auto& [in, out, groups] :
       {std::tuple<int, int, int>(6, 6, 6), {4, 8, 2}, {6, 9, 3}, {40, 80, 40}, {160, 140, 2}}) {
    const Conv2dSpec spec{.in = in, .out = out, .groups = groups};
    const std::int64_t d = a_dim(spec), o = g_dim(spec);
    LayerCurvature layer = make_layer_curvature(ctx, spec, options_);
    Vector pa, pg;
    Matrix expected(out, d);
    const Matrix v = random_matrix(out, d, random);
    double condition = 1;
    for (int group = 0; group < groups; ++group) {
      // Groups of different sizes, so that each needs its own pi.
      const double size = std::pow(10, group % 3);
      const Matrix a = second_moment(random_matrix(d, d, random, size), 1);
      const Matrix g = second_moment(random_matrix(o, o, random), 1);
      for (const double x : packed(a)) pa.push_back(x);
      for (const double x : packed(g)) pg.push_back(x);
      Matrix part(o, d);
      for (std::int64_t r = 0; r < o; ++r)
        for (std::int64_t c = 0; c < d; ++c) part(r, c) = v(group * o + r, c);
      const auto split = *split_damping(options_.damping, trace(a), d, trace(g), o);
      condition = std::max({condition, trace(a) / split.a, trace(g) / split.g});
      const Matrix solved = multiply(multiply(inverse(plus_diagonal(g, split.g)), part),
                                     inverse(plus_diagonal(a, split.a)));
      for (std::int64_t r = 0; r < o; ++r)
        for (std::int64_t c = 0; c < d; ++c) expected(group * o + r, c) = solved(r, c);
    }
    const CurvatureOptions latest{.statistics = {.new_weight = 1}, .dtype = DType::f64};
    const auto merge = [&](Vector& statistic, Factor& factor) {
      const auto n = static_cast<std::int64_t>(statistic.size());
      ASSERT_TRUE(merge_factor(ctx, latest, view_of(statistic.data(), {n}), factor));
    };
    merge(pa, layer.a);
    merge(pg, layer.g);
    std::vector<RefreshTask> tasks;
    add_refresh_tasks(ctx, options_, layer, {}, tasks);
    RefreshWorkers(ctx).run(tasks);
    auto [weight, bias] = split_bias(v);
    apply_curvature(ctx, spec, options_, layer, weight.view().flat(), view_of(bias.data(), {out}));
    // 32 d eps times the condition of the worst group.
    EXPECT_TRUE(near(join_bias(weight, bias).v, expected.v,
                     32 * static_cast<double>(d + o) * eps<double> * condition))
        << in << " " << out << " " << groups;
  }
}

TEST_P(Forms, FullBatchNormSolvesTheWholeSystem) {
  Random random(9);
  for (const bool scale : {true, false}) {
    const NormSpec spec{.channels = 40, .scale = scale};
    CurvatureOptions options = options_;
    options.statistics.norm_fisher = NormFisher::full;
    options.norm_damping = 3;
    options.statistics.new_weight = 1;
    LayerCurvature layer = make_layer_curvature(ctx, spec, options);
    const std::int64_t d = layer.g.dim;
    ASSERT_EQ(d, scale ? 80 : 40);
    const Matrix fisher = second_moment(random_matrix(10, d, random), 10);
    Vector statistic = packed(fisher);
    ASSERT_TRUE(
        merge_factor(ctx, options, view_of(statistic.data(), {ops::packed_size(d)}), layer.g));
    std::vector<RefreshTask> tasks;
    add_refresh_tasks(ctx, options, layer, {}, tasks);
    ASSERT_EQ(tasks.size(), 1U);
    RefreshWorkers(ctx).run(tasks);
    Vector gamma = random_vector(scale ? 40 : 0, random), beta = random_vector(40, random);
    Vector both = gamma;
    both.insert(both.end(), beta.begin(), beta.end());
    const Vector expected = solve(plus_diagonal(fisher, 3 * 0.02), both);
    apply_curvature(ctx, spec, options, layer, scale ? view_of(gamma.data(), {40}) : TensorView{},
                    view_of(beta.data(), {40}));
    both = gamma;
    both.insert(both.end(), beta.begin(), beta.end());
    // 32 d eps times the condition, which is below 1 + trace / shift.
    EXPECT_TRUE(near(both, expected,
                     32 * static_cast<double>(d) * eps<double> * (1 + trace(fisher) / 0.06)));
  }
}

TEST_P(Forms, ScalesTakeThePlaceOfProductsOfEigenvalues) {
  Random random(10);
  const LinearSpec spec{.in = 6, .out = 4};
  CurvatureOptions options = options_;
  options.inverse.method = InverseMethod::ekfac;
  options.statistics.new_weight = 1;
  LayerCurvature layer = make_layer_curvature(ctx, spec, options);
  const Matrix a = random_spd(7, random), g = random_spd(4, random),
               v = random_matrix(4, 7, random);
  const auto refresh = [&] {
    Vector pa = packed(a), pg = packed(g);
    ASSERT_TRUE(merge_factor(ctx, options, view_of(pa.data(), {28}), layer.a));
    ASSERT_TRUE(merge_factor(ctx, options, view_of(pg.data(), {10}), layer.g));
    std::vector<RefreshTask> tasks;
    add_refresh_tasks(ctx, options, layer, {}, tasks);
    RefreshWorkers(ctx).run(tasks);
  };
  const auto run = [&] {
    auto [weight, bias] = split_bias(v);
    apply_curvature(ctx, spec, options, layer, weight.view().flat(), view_of(bias.data(), {4}));
    return join_bias(weight, bias).v;
  };
  refresh();
  const Vector without = run();
  EXPECT_TRUE(near(without, solve(plus_diagonal(kronecker(g, a), 0.02), v.v), 1e-11));

  // With scales S: (sum over pairs of S q q' + lambda I)^-1 with q = q_g (x) q_a, all dense.
  Matrix scales = random_matrix(4, 7, random);
  for (double& s : scales.v) s = s * s;
  ASSERT_TRUE(merge_scales(ctx, options, scales.view().flat(), layer));
  const Vector qa = values(ctx, layer.a.inverse), qg = values(ctx, layer.g.inverse);
  Matrix dense(28, 28);
  for (std::int64_t j = 0; j < 4; ++j) {
    for (std::int64_t i = 0; i < 7; ++i) {
      Vector column_g, column_a;
      for (std::int64_t r = 0; r < 4; ++r)
        column_g.push_back(qg[static_cast<std::size_t>(4 * r + j)]);
      for (std::int64_t r = 0; r < 7; ++r)
        column_a.push_back(qa[static_cast<std::size_t>(7 * r + i)]);
      add_outer(dense, outer(column_g, column_a), scales(j, i));
    }
  }
  const Vector expected = solve(plus_diagonal(dense, 0.02), v.v);
  // 64 n eps times the condition, about 1e3.
  EXPECT_TRUE(near(run(), expected, 1e-10));
  EXPECT_FALSE(near(without, expected, 1e-2));

  // They belong to the eigenvectors: a refresh forgets them. What is not finite is refused.
  Matrix bad = scales;
  bad(1, 1) = std::numeric_limits<double>::infinity();
  EXPECT_FALSE(merge_scales(ctx, options, bad.view().flat(), layer));
  EXPECT_TRUE(near(run(), expected, 1e-10));
  refresh();
  EXPECT_EQ(layer.scale_statistics, 0);
  EXPECT_EQ(run(), without);
}

}  // namespace
}  // namespace dkfac::kfac
