#include "dkfac/kfac/preconditioner.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "support/natural_gradient.h"
#include "support/near.h"
#include "support/plain_training.h"

namespace dkfac::testing {
namespace {

kfac::CurvatureOptions options64() {
  kfac::CurvatureOptions options = natural_gradient();
  options.damping = 1e-2;
  options.dtype = DType::f64;
  options.communication.bucket_bytes = 4096;
  return options;
}

std::vector<double> train_ranks_preconditioned(int ranks, kfac::CurvatureOptions options,
                                               const TrainSettings& settings = {}) {
  std::vector<double> parameters;
  comm::run_ranks(ranks, [&](std::shared_ptr<comm::Communicator> comm) {
    const PlainNet<double> net = train_preconditioned<double>(comm, options, settings);
    if (comm->rank() == 0) parameters = net.parameters();
  });
  return parameters;
}

TEST(Preconditioner, GivesTheSameWeightsAtEveryNumberOfRanks) {
  const std::vector<double> alone = train_ranks_preconditioned(1, options64());
  for (const int ranks : {2, 3, 4})
    // Measured below 1e-13 after 20 steps.
    EXPECT_TRUE(near(train_ranks_preconditioned(ranks, options64()), alone, 1e-10)) << ranks;
}

TEST(Preconditioner, GivesTheSameWeightsWithStatisticsAtIntervals) {
  kfac::CurvatureOptions lazy = options64();
  lazy.refresh.statistics_interval = 3;
  lazy.refresh.inverse_interval = 6;
  const std::vector<double> alone = train_ranks_preconditioned(1, lazy);
  EXPECT_TRUE(near(train_ranks_preconditioned(3, lazy), alone, 1e-10));
  EXPECT_FALSE(near(train_ranks_preconditioned(1, options64()), alone, 1e-6));
}

/// The gradient after two steps of two records each, a large and a small one.
std::vector<double> precondition_parts(double first, double second) {
  kfac::CurvatureOptions options = options64();
  options.statistics.micro_batches = 2;
  options.statistics.operand = DType::f16;
  kfac::Preconditioner preconditioner(comm::make_self(), options);
  const auto layer = preconditioner.add_layer("fc", LinearSpec{.in = 2, .out = 1, .bias = false});
  std::vector<double> dw;
  for (int step = 0; step < 2; ++step) {
    for (const double size : {first, second}) {
      const std::vector<double> x{size, 0.5 * size, -size, size}, dy{1, 1};
      preconditioner.record_input(layer, view_of(x.data(), {2, 2}));
      preconditioner.record_grad_output(layer, view_of(dy.data(), {2, 1}));
    }
    dw = {1, 2};
    const std::vector<kfac::LayerGrad> grads{{layer, view_of(dw.data(), {1, 2}), {}}};
    EXPECT_TRUE(preconditioner.step(grads).updated);
  }
  return dw;
}

TEST(Preconditioner, ScalesHalfPrecisionByTheRangeOfAllMicroBatches) {
  EXPECT_EQ(precondition_parts(1024, 1e-3), precondition_parts(1e-3, 1024));
}

/// One layer of identity-like data whose inputs and output gradients are scaled; dW comes back.
std::vector<double> precondition_scaled(kfac::InverseMethod method, double input, double output) {
  kfac::CurvatureOptions options = options64();
  options.damping = 0.25;
  options.inverse.method = method;
  kfac::Preconditioner preconditioner(comm::make_self(), options);
  const auto layer = preconditioner.add_layer("fc", LinearSpec{.in = 2, .out = 2, .bias = false});
  const std::vector<double> x{input, 0, 0, input}, dy{output, 0, 0, output};
  preconditioner.record_input(layer, view_of(x.data(), {2, 2}));
  preconditioner.record_grad_output(layer, view_of(dy.data(), {2, 2}));
  std::vector<double> dw{1, 2, 3, 4};
  const std::vector<kfac::LayerGrad> grads{{layer, view_of(dw.data(), {2, 2}), {}}};
  EXPECT_TRUE(preconditioner.step(grads).updated);
  return dw;
}

TEST(Preconditioner, DividesByTheDampingWhereAFactorIsZero) {
  using enum kfac::InverseMethod;
  const std::vector<double> expected{4, 8, 12, 16};
  for (const kfac::InverseMethod method : {cholesky, eigen}) {
    for (const auto& [input, output] : {std::pair(0.0, 1.0), {1.0, 0.0}, {0.0, 0.0}})
      EXPECT_TRUE(near(precondition_scaled(method, input, output), expected, 4 * eps<double>))
          << input << " " << output;
    EXPECT_FALSE(near(precondition_scaled(method, 1, 1), expected, 0.1));
  }
}

TEST(Preconditioner, OverlapChangesNoBit) {
  kfac::CurvatureOptions blocking = options64();
  blocking.communication.overlap = false;
  EXPECT_EQ(train_ranks_preconditioned(3, options64()), train_ranks_preconditioned(3, blocking));
}

TEST(Preconditioner, EqualsTheOptimizerWithoutMomentum) {
  const std::vector<double> optimizer = train_ranks<double>(2, [](auto comm) {
    return optim::make_kfac(comm, {.curvature = options64(), .momentum = 0});
  });
  // The same sums in another order over 12 steps.
  EXPECT_TRUE(near(train_ranks_preconditioned(2, options64()), optimizer, 1e-10));
}

TEST(Preconditioner, GrowsNoTemporaryMemoryInASteadyRun) {
  std::vector<std::int64_t> growths;
  (void)train_preconditioned<double>(
      comm::make_self(), options64(), {.steps = 6},
      [&](const kfac::StepReport& report) { growths.push_back(report.scratch_growths); });
  EXPECT_GT(growths.front(), 0);
  EXPECT_EQ(growths[1], growths.back());
}

/// One step of a linear layer and a BatchNorm whose eight samples are recorded in `parts`, with
/// gradients `factor` times as large.
std::vector<double> step_in_parts(kfac::CurvatureOptions options, std::int64_t parts,
                                  double factor = 1) {
  options.statistics.micro_batches = static_cast<int>(parts);
  kfac::Preconditioner preconditioner(comm::make_self(), options);
  const auto fc = preconditioner.add_layer("fc", LinearSpec{.in = 3, .out = 2});
  const auto bn = preconditioner.add_layer("bn", NormSpec{.channels = 2});
  std::vector<double> x(8 * 3), z(8 * 2), mean{0.1, -0.2}, inv_std{1.5, 0.5};
  Random random(5);
  fill_normal(view_of(x.data(), {24}), 0, 1, random);
  fill_normal(view_of(z.data(), {16}), 0, 1, random);
  std::vector<double> dy = z;
  for (double& d : dy) d *= factor;
  const std::int64_t n = 8 / parts;
  // Without a global batch, samples are counted by the number of micro-batches.
  const RecordScale scale{.loss_scale = 1, .global_batch = parts == 2 ? 0 : 8};
  for (std::int64_t p = 0; p < parts; ++p) {
    const auto x_part = view_of(x.data() + p * n * 3, {n, 3});
    const auto dy_part = view_of(dy.data() + p * n * 2, {n, 2});
    preconditioner.record_input(fc, x_part, Stream::cpu(), scale);
    preconditioner.record_grad_output(fc, dy_part, Stream::cpu(), scale);
    preconditioner.record_normalization(bn, view_of(z.data() + p * n * 2, {n, 2}),
                                        view_of(mean.data(), {2}), view_of(inv_std.data(), {2}),
                                        dy_part, Stream::cpu(), scale);
  }
  std::vector<double> g{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  const std::vector<kfac::LayerGrad> grads{
      {fc, view_of(g.data(), {2, 3}), view_of(g.data() + 6, {2})},
      {bn, view_of(g.data() + 8, {2}), view_of(g.data() + 10, {2})}};
  (void)preconditioner.step(grads);
  return g;
}

TEST(Preconditioner, AddsMicroBatchesUp) {
  // In each reduction, the record of a sample does not depend on the split into micro-batches.
  for (const auto reduction :
       {LossReduction::local_mean, LossReduction::global_mean, LossReduction::sum}) {
    kfac::CurvatureOptions options = options64();
    options.loss_reduction = reduction;
    const std::vector<double> whole = step_in_parts(options, 1);
    for (const int parts : {2, 4, 8})
      // Eight terms in another order, inverted at condition about 1e2.
      EXPECT_TRUE(near(step_in_parts(options, parts), whole, 100 * 8 * eps<double>)) << parts;
    // Control: means over each part are gradients of another scale, and that shows.
    EXPECT_FALSE(near(step_in_parts(options, 2, 2), whole, 1e-3));
  }
}

TEST(Preconditioner, AcceptsARankWithoutSamples) {
  const std::vector<double> x{1, 2, -1, 0.5, 3, 1}, dy{1, -1};
  const auto run = [&](const std::shared_ptr<comm::Communicator>& comm) {
    kfac::CurvatureOptions options = options64();
    options.loss_reduction = LossReduction::sum;
    kfac::Preconditioner preconditioner(comm, options);
    const auto fc = preconditioner.add_layer("fc", LinearSpec{.in = 3, .out = 1});
    const std::int64_t n = comm->rank() == 0 ? 2 : 0;
    const RecordScale scale{.loss_scale = 1, .global_batch = 2};
    preconditioner.record_input(fc, view_of(x.data(), {n, 3}), Stream::cpu(), scale);
    preconditioner.record_grad_output(fc, view_of(dy.data(), {n, 1}), Stream::cpu(), scale);
    std::vector<double> g{1, 2, 3, 4};
    const std::vector<kfac::LayerGrad> grads{
        {fc, view_of(g.data(), {1, 3}), view_of(g.data() + 3, {1})}};
    EXPECT_TRUE(preconditioner.step(grads).updated);
    return g;
  };
  const std::vector<double> alone = run(comm::make_self());
  comm::run_ranks(2, [&](auto comm) { EXPECT_EQ(run(comm), alone); });
}

TEST(Preconditioner, RefusesMoreRecordsThanMicroBatches) {
  kfac::Preconditioner preconditioner(comm::make_self(), options64());
  const auto fc = preconditioner.add_layer("fc", LinearSpec{.in = 3, .out = 2});
  std::vector<double> x(6, 1.0);
  preconditioner.record_input(fc, view_of(x.data(), {2, 3}));
  EXPECT_THROW(preconditioner.record_input(fc, view_of(x.data(), {2, 3})), InvalidArgument);
}

TEST(Preconditioner, LeavesPlainLayersAlone) {
  kfac::Preconditioner preconditioner(comm::make_self(), options64());
  const auto plain = preconditioner.add_layer("gain", PlainSpec{.weight = 3});
  std::vector<double> g{1, 2, 3};
  const std::vector<kfac::LayerGrad> grads{{plain, view_of(g.data(), {3}), {}}};
  EXPECT_TRUE(preconditioner.step(grads).updated);
  EXPECT_EQ(g, (std::vector<double>{1, 2, 3}));
}

TEST(Preconditioner, AcceptsGradientsOfAnotherTypeThanItsFactors) {
  const auto run = [](auto zero, DType dtype) {
    using T = decltype(zero);
    kfac::CurvatureOptions options = options64();
    options.dtype = dtype;
    kfac::Preconditioner preconditioner(comm::make_self(), options);
    const auto fc = preconditioner.add_layer("fc", LinearSpec{.in = 2, .out = 2, .bias = false});
    std::vector<T> x{1, 2, 3, -1}, dy{1, -1, 2, T(0.5)}, g{1, 2, 3, 4};
    preconditioner.record_input(fc, view_of(x.data(), {2, 2}));
    preconditioner.record_grad_output(fc, view_of(dy.data(), {2, 2}));
    const std::vector<kfac::LayerGrad> grads{{fc, view_of(g.data(), {2, 2}), {}}};
    (void)preconditioner.step(grads);
    return std::vector<double>(g.begin(), g.end());
  };
  const std::vector<double> exact = run(double{}, DType::f64);
  // 2x2 factors of condition about 1e3 in f32.
  EXPECT_TRUE(near(run(float{}, DType::f64), exact, 10 * eps<float>));
  EXPECT_TRUE(near(run(double{}, DType::f32), exact, 1e4 * eps<float>));
}

TEST(Preconditioner, NamesTheLayerThatWasNotRecorded) {
  kfac::Preconditioner preconditioner(comm::make_self(), options64());
  const auto fc = preconditioner.add_layer("fc9", LinearSpec{.in = 1, .out = 1, .bias = false});
  double x = 1, g = 1;
  preconditioner.record_input(fc, view_of(&x, {1, 1}));
  const std::vector<kfac::LayerGrad> grads{{fc, view_of(&g, {1, 1}), {}}};
  try {
    (void)preconditioner.step(grads);
    FAIL() << "no error";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("'fc9' has 0 of 1 record_grad_output"),
              std::string::npos)
        << error.what();
  }
}

TEST(Preconditioner, ChecksTheGradientsItIsGiven) {
  kfac::Preconditioner preconditioner(comm::make_self(), options64());
  const auto fc = preconditioner.add_layer("fc", LinearSpec{.in = 2, .out = 1, .bias = false});
  std::vector<double> g(4, 1.0);
  const kfac::LayerGrad good{fc, view_of(g.data(), {1, 2}), {}};
  const auto step = [&](std::vector<kfac::LayerGrad> grads) { (void)preconditioner.step(grads); };
  EXPECT_THROW(step({}), InvalidArgument);
  EXPECT_THROW(step({good, good}), InvalidArgument);
  EXPECT_THROW(step({{fc, view_of(g.data(), {3}), {}}}), InvalidArgument);
  EXPECT_THROW(step({{fc, good.weight, good.weight}}), InvalidArgument);
  EXPECT_THROW(step({{LayerId{1}, good.weight, {}}}), InvalidArgument);
}

TEST(Preconditioner, RefusesUnknownLayers) {
  kfac::Preconditioner preconditioner(comm::make_self(), options64());
  (void)preconditioner.add_layer("fc", LinearSpec{.in = 2, .out = 1});
  EXPECT_THROW((void)preconditioner.add_layer("fc", LinearSpec{.in = 2, .out = 1}),
               InvalidArgument);
  EXPECT_THROW((void)preconditioner.add_layer("", LinearSpec{.in = 2, .out = 1}), InvalidArgument);
  EXPECT_THROW((void)preconditioner.add_layer("b", LinearSpec{.in = 0, .out = 1}), InvalidArgument);
  preconditioner.prepare();
  EXPECT_THROW((void)preconditioner.add_layer("c", LinearSpec{.in = 2, .out = 1}), InvalidArgument);
  EXPECT_THROW(kfac::Preconditioner(nullptr), InvalidArgument);
}

}  // namespace
}  // namespace dkfac::testing
