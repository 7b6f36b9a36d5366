#include "kfac/inverse/refresh.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "kfac/cuda/rebuilding_on_device.h"

// Inverses rebuilt on the device, against those of the host.
namespace dkfac::kfac {
namespace {

using dkfac::testing::device_values;
using dkfac::testing::host_waits;
using dkfac::testing::near;
using dkfac::testing::values;
using testing::make_twins;
using testing::RebuildingOnDevice;
using testing::Twins;

class Refresh : public RebuildingOnDevice {
 protected:
  /// The stages of the last run, as the host reads them.
  std::vector<std::int32_t> read(RefreshWorkers& workers) {
    return read_back<std::int32_t>(ctx, workers.stages());
  }
  void expect_equal(const Factor& host, const Factor& device, double tolerance) {
    EXPECT_TRUE(near(device_values(ctx, device.inverse), values(cpu, host.inverse), tolerance))
        << host.dim;
    EXPECT_TRUE(near(device_values(ctx, device.shifts), values(cpu, host.shifts), 1e-7));
  }
  /// Refreshes on both sides, and compares.
  void expect_alike(std::vector<Twins>& twins, const CurvatureOptions& options) {
    std::vector<LayerCurvature*> host, device;
    for (Twins& t : twins) {
      host.push_back(&t.host);
      device.push_back(&t.device);
    }
    RefreshWorkers on_host(cpu), on_device(ctx);
    std::vector<RefreshTask> expected = tasks_of(cpu, options, host);
    on_host.run(expected);
    ctx.stream().synchronize();
    const auto waits = host_waits();
    std::vector<RefreshTask> tasks = tasks_of(ctx, options, device);
    on_device.run(tasks);
    EXPECT_EQ(host_waits(), waits);
    ASSERT_EQ(tasks.size(), expected.size());
    for (const RefreshTask& task : tasks) EXPECT_FALSE(task.factor->stale);
    const std::vector<std::int32_t> stages = read(on_device);
    const auto collected = host_waits();
    const auto results = on_device.collect(stages);
    EXPECT_EQ(host_waits(), collected) << "nothing failed";
    for (std::size_t i = 0; i < results.size(); ++i) {
      EXPECT_EQ(results[i].stage, expected[i].stage) << i;
      EXPECT_TRUE(results[i].factor->valid);
      expect_equal(*expected[i].factor, *tasks[i].factor, tolerance());
    }
    EXPECT_TRUE(on_device.stages().empty());
  }
};
DKFAC_ON_DEVICE(Refresh);

TEST_P(Refresh, InvertsManyWidthsAsTheHostDoes) {
  Random random(1);
  const CurvatureOptions options = options_of();
  std::vector<Twins> twins;
  for (const std::int64_t width : {5, 40, 5, 1, 40, 130, 5})
    twins.push_back(make_twins(ctx, LinearSpec{.in = width, .out = 40}, options, random));
  expect_alike(twins, options);
  for (Twins& t : twins)
    for (LayerCurvature* layer : {&t.host, &t.device}) layer->a.stale = layer->g.stale = true;
  expect_alike(twins, options);
}

TEST_P(Refresh, InvertsWideFactorsOneByOne) {
  Random random(2);
  const CurvatureOptions options = options_of();
  std::vector<Twins> twins;
  for (const std::int64_t width : {520, 600})
    twins.push_back(make_twins(ctx, LinearSpec{.in = width, .out = 3}, options, random));
  expect_alike(twins, options);
}

TEST_P(Refresh, InvertsEveryGroupOfAConvolution) {
  Random random(3);
  const CurvatureOptions options = options_of();
  std::vector<Twins> twins;
  twins.push_back(
      make_twins(ctx, Conv2dSpec{.in = 12, .out = 12, .window = Window::square(3), .groups = 12},
                 options, random));
  twins.push_back(make_twins(ctx, Conv2dSpec{.in = 80, .out = 4, .groups = 2}, options, random));
  expect_alike(twins, options);
}

TEST_P(Refresh, InvertsRowsByTheirGramMatrix) {
  Random random(4);
  CurvatureOptions options = options_of();
  options.statistics.new_weight = 1;
  options.statistics.low_rank = true;
  std::vector<Twins> twins;
  twins.push_back(
      make_twins(ctx, LinearSpec{.in = 400, .out = 300, .max_rows = 7}, options, random));
  ASSERT_EQ(twins[0].device.a.form, FactorForm::low_rank);
  expect_alike(twins, options);
}

TEST_P(Refresh, InvertsTheFullFisherOfABatchNorm) {
  Random random(5);
  CurvatureOptions options = options_of();
  options.statistics.norm_fisher = NormFisher::full;
  std::vector<Twins> twins;
  twins.push_back(make_twins(ctx, NormSpec{.channels = 6}, options, random));
  expect_alike(twins, options);
}

/// Q diag(w) Q' is unique where eigenvectors are not.
TEST_P(Refresh, DecomposesAsTheHostDoes) {
  Random random(6);
  const CurvatureOptions options = options_of(InverseMethod::eigen);
  Twins twins = make_twins(ctx, LinearSpec{.in = 30, .out = 9}, options, random);
  twins.device.scale_statistics = 3;
  std::vector<RefreshTask> tasks = tasks_of(ctx, options, {&twins.device});
  RefreshWorkers workers(ctx);
  const auto waits = host_waits();
  workers.run(tasks);
  EXPECT_EQ(host_waits(), waits);
  EXPECT_EQ(twins.device.scale_statistics, 3) << "until it is known that there are others";
  const std::vector<std::int32_t> stages = read(workers);
  const auto results = workers.collect(stages);
  EXPECT_EQ(twins.device.scale_statistics, 0);
  for (const RefreshTask& task : results) {
    EXPECT_EQ(task.stage, InverseStage::damped);
    EXPECT_TRUE(task.factor->valid);
    const std::int64_t d = task.factor->dim;
    dkfac::testing::fisher::Matrix q(d, d), w(d, d), average(d, d);
    q.v = device_values(ctx, task.factor->inverse);
    const std::vector<double> eigenvalues = device_values(ctx, task.factor->values);
    for (std::int64_t i = 0; i < d; ++i) w(i, i) = eigenvalues[static_cast<std::size_t>(i)];
    const std::vector<double> packed = device_values(ctx, task.factor->average);
    for (std::int64_t r = 0, i = 0; r < d; ++r)
      for (std::int64_t c = 0; c <= r; ++c)
        average(r, c) = average(c, r) = packed[static_cast<std::size_t>(i++)];
    EXPECT_TRUE(near(multiply(multiply(q, w), transpose(q)).v, average.v, tolerance()));
  }
}

TEST_P(Refresh, SplitsTheDampingByTheRuleAskedFor) {
  std::vector<std::vector<double>> shifts;
  for (const DampingSplit rule :
       {DampingSplit::pi, DampingSplit::equal_traces, DampingSplit::constant}) {
    Random random(11);
    CurvatureOptions options = options_of();
    options.damping_split = rule;
    std::vector<Twins> twins;
    twins.push_back(make_twins(ctx, LinearSpec{.in = 40, .out = 5}, options, random));
    expect_alike(twins, options);
    shifts.push_back(device_values(ctx, twins[0].device.a.shifts));
  }
  // Controls: each rule is another one.
  EXPECT_GT(std::abs(shifts[1][0] / shifts[0][0] - 1), 0.1);
  EXPECT_GT(std::abs(shifts[2][0] / shifts[0][0] - 1), 0.01);
  EXPECT_GT(std::abs(shifts[2][0] / shifts[1][0] - 1), 0.01);
}

TEST_P(Refresh, SplitsTheDampingOfAZeroFactor) {
  Random random(7);
  const CurvatureOptions options = options_of();
  std::vector<Twins> twins;
  twins.push_back(make_twins(ctx, LinearSpec{.in = 6, .out = 4}, options, random));
  ops::fill(cpu, twins[0].host.g.average, 0);
  ops::fill(ctx, twins[0].device.g.average, 0);
  expect_alike(twins, options);
  const std::vector<double> inverse = device_values(ctx, twins[0].device.a.inverse);
  EXPECT_NEAR(inverse[0], 1 / std::sqrt(0.1), 1e-6);
  EXPECT_EQ(inverse[1], 0);
}

TEST_P(Refresh, AFailureLeavesTheOldInverseAndFallsBackLater) {
  Random random(8);
  const CurvatureOptions options = options_of();
  Twins twins = make_twins(ctx, LinearSpec{.in = 7, .out = 5}, options, random);
  Factor& a = twins.device.a;
  RefreshWorkers workers(ctx);
  const auto refresh = [&] {
    a.stale = true;
    std::vector<RefreshTask> tasks = tasks_of(ctx, options, {&twins.device});
    const auto waits = host_waits();
    workers.run(tasks);
    EXPECT_EQ(host_waits(), waits);
    return read(workers);
  };
  std::vector<std::int32_t> stages = refresh();
  (void)workers.collect(stages);
  const std::vector<double> before = device_values(ctx, a.inverse);

  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Tensor average = Tensor::copy_of(ctx, a.average);
  ops::fill(ctx, a.average.view().slice(0, 4, 1), nan);
  stages = refresh();
  EXPECT_EQ(stages[0], static_cast<std::int32_t>(InverseStage::kept));
  EXPECT_EQ(device_values(ctx, a.inverse), before);
  EXPECT_EQ(workers.collect(stages)[0].stage, InverseStage::kept);
  EXPECT_EQ(a.failures, 1);
  EXPECT_EQ(a.failed_group, 0);
  EXPECT_TRUE(a.valid) << "of the refresh before";
  EXPECT_EQ(device_values(ctx, a.inverse), before);

  // Not positive definite with the requested damping, but with ten times as much.
  ops::fill(ctx, a.average, 0);
  const double asked = std::sqrt(0.1);
  for (std::int64_t i = 0; i < a.dim; ++i)
    ops::fill(ctx, a.average.view().slice(0, i * (i + 3) / 2, 1), i == 2 ? -1.5 * asked : 0.4);
  a.stale = true;
  std::vector<RefreshTask> tasks = tasks_of(ctx, options, {&twins.device});
  ops::fill(ctx, a.requested_damping, asked);
  workers.run(tasks);
  stages = read(workers);
  EXPECT_EQ(stages[0], static_cast<std::int32_t>(InverseStage::kept));
  EXPECT_EQ(device_values(ctx, a.inverse), before) << "until it is collected";
  const auto results = workers.collect(stages);
  EXPECT_EQ(results[0].stage, InverseStage::more_damped);
  EXPECT_TRUE(results[0].written);
  EXPECT_EQ(a.failures, 0);
  EXPECT_EQ(a.failed_group, -1);
  EXPECT_NEAR(device_values(ctx, a.shifts)[0], 10 * asked, 1e-6);
  const std::vector<double> rebuilt = device_values(ctx, a.inverse);
  EXPECT_NEAR(rebuilt[0], 1 / (0.4 + 10 * asked), 1e-6);
  EXPECT_NEAR(rebuilt[static_cast<std::size_t>(2 * a.dim + 2)], 1 / (8.5 * asked), 1e-6);

  ops::copy(ctx, average, a.average);
  stages = refresh();
  EXPECT_EQ(workers.collect(stages)[0].stage, InverseStage::damped);
  EXPECT_TRUE(near(device_values(ctx, a.inverse), before, tolerance()));
}

TEST_P(Refresh, OneBadGroupFallsBackAlone) {
  Random random(9);
  const CurvatureOptions options = options_of();
  Twins twins =
      make_twins(ctx, Conv2dSpec{.in = 6, .out = 6, .bias = false, .groups = 3}, options, random);
  Factor& a = twins.device.a;
  ops::fill(ctx, a.average.view().slice(0, 3, 1), std::numeric_limits<double>::quiet_NaN());
  std::vector<RefreshTask> tasks;
  add_refresh_tasks(ctx, options, twins.device, {.a = true, .g = false}, tasks);
  ops::fill(ctx, a.requested_damping, 0.5);
  RefreshWorkers workers(ctx);
  workers.run(tasks);
  const std::vector<std::int32_t> stages = read(workers);
  const auto results = workers.collect(stages);
  EXPECT_EQ(results[0].stage, InverseStage::kept);
  EXPECT_TRUE(results[0].written);
  EXPECT_FALSE(a.valid);
  EXPECT_EQ(a.failed_group, 1);
  const std::vector<double> shifts = device_values(ctx, a.shifts);
  EXPECT_EQ(shifts, (std::vector<double>{0.5, 0, 0.5}));
}

TEST_P(Refresh, MustBeCollectedBeforeTheNext) {
  Random random(10);
  const CurvatureOptions options = options_of();
  Twins twins = make_twins(ctx, LinearSpec{.in = 3, .out = 2}, options, random);
  std::vector<RefreshTask> tasks = tasks_of(ctx, options, {&twins.device});
  RefreshWorkers workers(ctx);
  EXPECT_TRUE(workers.stages().empty());
  EXPECT_TRUE(workers.collect({}).empty());
  workers.run(tasks);
  EXPECT_THROW(workers.run(tasks), InvalidArgument);
  EXPECT_THROW((void)workers.collect({}), InvalidArgument);
}

TEST_P(Refresh, ManyFactorsAreAsOneByOne) {
  Random random(11);
  const CurvatureOptions options = options_of();
  std::vector<Twins> all, single;
  for (const std::int64_t width : {9, 20, 9, 530, 9, 20, 64, 3}) {
    all.push_back(make_twins(ctx, LinearSpec{.in = width, .out = 9}, options, random));
    single.push_back(make_twins(ctx, LinearSpec{.in = width, .out = 9}, options, random));
    testing::copy_average(ctx, all.back().device.a, single.back().device.a);
    testing::copy_average(ctx, all.back().device.g, single.back().device.g);
  }
  std::vector<LayerCurvature*> layers;
  for (Twins& t : all) layers.push_back(&t.device);
  RefreshWorkers workers(ctx), one(ctx);
  std::vector<RefreshTask> tasks = tasks_of(ctx, options, layers);
  workers.run(tasks);
  for (std::size_t i = 0; i < all.size(); ++i) {
    std::vector<RefreshTask> each = tasks_of(ctx, options, {&single[i].device});
    for (RefreshTask& task : each) {
      one.run({&task, 1});
      const std::vector<std::int32_t> stages = read(one);
      EXPECT_EQ(stages[0], 0);
      (void)one.collect(stages);
    }
    for (const bool of_a : {true, false}) {
      const Factor &x = of_a ? all[i].device.a : all[i].device.g,
                   &y = of_a ? single[i].device.a : single[i].device.g;
      // 64 d eps: the same systems, perhaps by another order of operations.
      EXPECT_TRUE(near(device_values(ctx, x.inverse), device_values(ctx, y.inverse),
                       64 * static_cast<double>(x.dim) * epsilon()));
    }
  }
}

}  // namespace
}  // namespace dkfac::kfac
