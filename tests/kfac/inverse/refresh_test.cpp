#include "kfac/inverse/refresh.h"

#include <limits>

#include <gtest/gtest.h>

#include "dkfac/core/ops.h"
#include "dkfac/core/random.h"
#include "dkfac/core/threads.h"

#include "support/near.h"

namespace dkfac::kfac {
namespace {

using testing::values;

CurvatureOptions options_of(InverseMethod method) {
  CurvatureOptions options;
  options.dtype = DType::f64;
  options.inverse.method = method;
  options.damping = 0.1;
  return options;
}

/// Layers of several widths with averages x'x of random x.
std::vector<LayerCurvature> make_layers(Context& ctx, const CurvatureOptions& options) {
  std::vector<LayerCurvature> layers;
  Random random(11);
  for (const std::int64_t width : {5, 130, 3, 40}) {  // enough work to wake threads
    layers.push_back(make_layer_curvature(ctx, LinearSpec{.in = width, .out = width / 2}, options));
    for (Factor* factor : {&layers.back().a, &layers.back().g}) {
      Tensor x = Tensor::empty(ctx, {2 * factor->dim, factor->dim}, DType::f64);
      Tensor square = Tensor::zeros(ctx, {factor->dim, factor->dim}, DType::f64);
      fill_normal(x, 0, 1, random);
      ops::syrk(ctx, 1, x, 0, square);
      ops::pack_lower(ctx, square, factor->average);
      factor->statistics = 1;
      factor->stale = true;
    }
  }
  return layers;
}

/// All inverses (and eigenvalues) after a refresh with `threads` threads.
std::vector<double> refresh(InverseMethod method, int threads, std::int64_t wide) {
  const int before = dkfac::threads();
  set_threads(threads);
  Context ctx;
  const CurvatureOptions options = options_of(method);
  std::vector<LayerCurvature> layers = make_layers(ctx, options);
  std::vector<RefreshTask> tasks;
  for (LayerCurvature& layer : layers) add_refresh_tasks(ctx, options, layer, {}, tasks);
  RefreshWorkers workers(ctx);
  workers.run(tasks, wide);
  std::vector<double> all;
  for (const RefreshTask& task : tasks) {
    EXPECT_EQ(task.stage, InverseStage::damped);
    EXPECT_TRUE(task.factor->valid);
    for (const double x : values(ctx, task.factor->inverse)) all.push_back(x);
    if (method == InverseMethod::eigen)
      for (const double x : values(ctx, task.factor->values)) all.push_back(x);
  }
  set_threads(before);
  return all;
}

TEST(Refresh, GivesTheSameBitsAtEveryNumberOfThreads) {
  for (const auto method : {InverseMethod::cholesky, InverseMethod::eigen}) {
    const std::vector<double> alone = refresh(method, 1, 2000);
    for (const int threads : {2, 3, 16}) EXPECT_EQ(refresh(method, threads, 2000), alone);
  }
}

TEST(Refresh, TakesWideFactorsFirstWithAllThreads) {
  // Only the factor of width 131 counts as wide; threaded LAPACK may round differently.
  const std::vector<double> wide = refresh(InverseMethod::cholesky, 2, 100);
  EXPECT_TRUE(testing::near(wide, refresh(InverseMethod::cholesky, 1, 100),
                            100 * 131 * testing::eps<double>));
}

TEST(Refresh, InvertsWithTheSplitDamping) {
  Context ctx;
  const CurvatureOptions options = options_of(InverseMethod::cholesky);
  LayerCurvature layer =
      make_layer_curvature(ctx, LinearSpec{.in = 1, .out = 1, .bias = false}, options);
  ops::fill(ctx, layer.a.average, 4);
  ops::fill(ctx, layer.g.average, 1);
  layer.a.stale = layer.g.stale = true;
  std::vector<RefreshTask> tasks;
  add_refresh_tasks(ctx, options, layer, {}, tasks);
  RefreshWorkers(ctx).run(tasks);
  // pi = 2: A + 2 sqrt(0.1), G + sqrt(0.1) / 2.
  ASSERT_EQ(layer.a.form, FactorForm::inverse);
  EXPECT_DOUBLE_EQ(layer.a.shifts.data<double>()[0], 2 * std::sqrt(0.1));
  EXPECT_DOUBLE_EQ(values(ctx, layer.a.inverse)[0], 1 / (4 + 2 * std::sqrt(0.1)));
  EXPECT_DOUBLE_EQ(values(ctx, layer.g.inverse)[0], 1 / (1 + std::sqrt(0.1) / 2));
}

TEST(Refresh, DampsRelativelyToAWeightedMeanOfG) {
  Context ctx;
  CurvatureOptions options = options_of(InverseMethod::cholesky);
  options.damping = 0;
  options.relative_damping = 0.25;
  LayerCurvature layer =
      make_layer_curvature(ctx, LinearSpec{.in = 2, .out = 2, .bias = false}, options);
  const std::vector<double> a{1, 0, 9}, g{1, 0, 3};  // Triangles.
  ops::copy(ctx, view_of(a.data(), {3}), layer.a.average);
  ops::copy(ctx, view_of(g.data(), {3}), layer.g.average);
  layer.a.stale = layer.g.stale = true;
  std::vector<RefreshTask> tasks;
  add_refresh_tasks(ctx, options, layer, {}, tasks);
  RefreshWorkers(ctx).run(tasks);
  EXPECT_DOUBLE_EQ(layer.a.shifts.data<double>()[0], 0.5 * (1 + 9) / 2);
  EXPECT_DOUBLE_EQ(layer.g.shifts.data<double>()[0], 0.5 * (1 * 1 + 3 * 3) / (1 + 3));
}

/// width * tr M^2 / tr M and tr M of the groups, or of all together, by full matrices.
struct Means {
  std::vector<double> weighted, plain;
};
Means dense_means(Context& ctx, const Factor& factor, bool together) {
  Means means;
  double squares = 0, trace = 0;
  Tensor m = Tensor::empty(ctx, {factor.dim, factor.dim}, DType::f64);
  for (int group = 0; group < factor.groups; ++group) {
    ops::fill(ctx, m, 0);
    if (factor.is_diagonal())
      for (std::int64_t i = 0; i < factor.dim; ++i)
        m.data<double>()[i * factor.dim + i] = factor.average.data<double>()[i];
    else
      factor.form->write_average(ctx, average_of(factor, group), m);
    if (!together) squares = trace = 0;
    for (std::int64_t i = 0; i < factor.dim; ++i) {
      trace += m.data<double>()[i * factor.dim + i];
      for (std::int64_t j = 0; j < factor.dim; ++j)
        squares += m.data<double>()[i * factor.dim + j] * m.data<double>()[j * factor.dim + i];
    }
    if (together && group < factor.groups - 1) continue;
    means.weighted.push_back(static_cast<double>(factor.width()) * squares / trace);
    means.plain.push_back(trace);
  }
  return means;
}

TEST(Refresh, WeighsTheEigenvaluesOfEveryForm) {
  const std::vector<FactorPlan> plans{
      {.dim = 7, .groups = 1, .form = FactorForm::inverse},
      {.dim = 5, .groups = 3, .form = FactorForm::cholesky},
      {.dim = 6, .groups = 2, .form = FactorForm::eigen},
      {.dim = 7, .groups = 1, .form = FactorForm::low_rank, .rows = 3},
      {.dim = 7, .groups = 1, .form = FactorForm::diagonal},
      {.dim = 3, .groups = 3, .form = FactorForm::blocks, .whole = 9}};
  // Sums of up to n = 81 terms, of positive products but in rows X: c = 4.
  constexpr double kTolerance = 4 * 81 * testing::eps<double>;
  Context ctx;
  Random random(3);
  for (const FactorPlan& plan : plans) {
    SCOPED_TRACE(plan.form->name);
    Factor factor;
    static_cast<FactorPlan&>(factor) = plan;
    factor.average = Tensor::empty(ctx, {plan.statistic_numel()}, DType::f64);
    fill_normal(factor.average, 2, 1, random);
    for (const bool together : {false, true}) {
      if (!together && plan.form == FactorForm::blocks) continue;  // Of a single matrix.
      const Means expected = dense_means(ctx, factor, together);
      Tensor traces = Tensor::empty(ctx, {std::ssize(expected.plain)}, DType::f64);
      damping_traces(ctx, factor, false, traces);
      EXPECT_TRUE(testing::near(values(ctx, traces), expected.plain, kTolerance));
      damping_traces(ctx, factor, true, traces);
      EXPECT_TRUE(testing::near(values(ctx, traces), expected.weighted, kTolerance));
      EXPECT_FALSE(testing::near(values(ctx, traces), expected.plain, 0.1));  // Control.
    }
    ops::fill(ctx, factor.average, 0);
    Tensor zero = Tensor::empty(ctx, {1}, DType::f64);
    damping_traces(ctx, factor, true, zero);
    EXPECT_EQ(values(ctx, zero)[0], 0);
  }
}

TEST(Refresh, ForgetsTheScalesOfAnyGroupsNewEigenvectors) {
  Context ctx;
  const CurvatureOptions options = options_of(InverseMethod::ekfac);
  LayerCurvature layer =
      make_layer_curvature(ctx, Conv2dSpec{.in = 4, .out = 4, .bias = false, .groups = 2}, options);
  const auto refresh_a = [&] {
    layer.scale_statistics = 5;
    layer.a.requested_damping.data<double>()[0] = layer.a.requested_damping.data<double>()[1] = 0.1;
    std::vector<RefreshTask> tasks{{&layer, &layer.a}};
    RefreshWorkers(ctx).run(tasks);
    return tasks[0].stage;
  };
  ops::fill(ctx, layer.a.average, 1);
  const TensorView average = layer.a.average.view();
  const std::int64_t size = ops::packed_size(layer.a.dim);
  ops::fill(ctx, average.slice(0, size, size), std::numeric_limits<double>::quiet_NaN());
  EXPECT_EQ(refresh_a(), InverseStage::kept);
  EXPECT_EQ(layer.scale_statistics, 0);  // group 0 has new vectors
  EXPECT_EQ(layer.a.failed_group, 1);
  ops::fill(ctx, average, std::numeric_limits<double>::quiet_NaN());
  EXPECT_EQ(refresh_a(), InverseStage::kept);
  EXPECT_EQ(layer.scale_statistics, 5);
}

TEST(Refresh, KeepsTheOldInverseOfAFactorThatFails) {
  Context ctx;
  const CurvatureOptions options = options_of(InverseMethod::cholesky);
  LayerCurvature layer =
      make_layer_curvature(ctx, LinearSpec{.in = 1, .out = 1, .bias = false}, options);
  ops::fill(ctx, layer.a.inverse, 7);
  ops::fill(ctx, layer.a.average, std::numeric_limits<double>::quiet_NaN());
  ops::fill(ctx, layer.g.average, 1);
  layer.a.requested_damping.data<double>()[0] = layer.g.requested_damping.data<double>()[0] = 0.1;
  std::vector<RefreshTask> tasks{{&layer, &layer.a}, {&layer, &layer.g}};
  RefreshWorkers(ctx).run(tasks);
  EXPECT_EQ(tasks[0].stage, InverseStage::kept);
  EXPECT_FALSE(layer.a.valid);
  EXPECT_EQ(values(ctx, layer.a.inverse)[0], 7);
  EXPECT_EQ(tasks[1].stage, InverseStage::damped);
}

}  // namespace
}  // namespace dkfac::kfac
