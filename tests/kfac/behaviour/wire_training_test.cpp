#include <cmath>

#include <gtest/gtest.h>

#include "dkfac/core/half.h"

#include "support/natural_gradient.h"
#include "support/near.h"
#include "support/plain_training.h"

// Trainings whose gradients, statistics and weights are sent in 16 bits. train() compares the bits
// of all ranks after every step.
namespace dkfac::testing {
namespace {

optim::KfacOptions wire_base() {
  optim::KfacOptions options{.curvature = natural_gradient()};
  options.curvature.damping = 1e-2;
  options.curvature.dtype = DType::f64;
  options.curvature.communication.bucket_bytes = 4096;
  return options;
}

std::vector<double> trained(int ranks, const optim::KfacOptions& options, int steps) {
  return train_ranks<double>(ranks, [&](auto comm) { return optim::make_kfac(comm, options); },
                             {.steps = steps});
}

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum);
}

class GradientWire : public ::testing::TestWithParam<DType> {};

TEST_P(GradientWire, StaysCloseToTheExactTraining) {
  const std::vector<double> start = PlainNet<double>(3).parameters();
  const MakeOptimizer exact = [](auto comm) { return optim::make_sgd(comm, {}); };
  const MakeOptimizer narrow = [](auto comm) {
    return optim::make_sgd(comm, {.communication = {.gradient_wire = GetParam()}});
  };
  const std::vector<double> reference = train_ranks<double>(1, exact, {.steps = 5});
  const double moved = distance(reference, start);
  for (const int ranks : {1, 3}) {
    const double error = distance(train_ranks<double>(ranks, narrow, {.steps = 5}), reference);
    // Relative roundings of 2^-8 at most, which five steps of a smooth problem pass on.
    EXPECT_LT(error, 0.02 * moved) << ranks;
    EXPECT_GT(error, 1e-7 * moved) << ranks;  // Negative control.
  }
}

TEST_P(GradientWire, ServesMuonWhoseDirectionsEnlargeSmallSingularValues) {
  const auto make = [](std::optional<DType> wire) -> MakeOptimizer {
    return [wire](auto comm) {
      return optim::make_muon(comm, {.communication = {.gradient_wire = wire}});
    };
  };
  const std::vector<double> start = PlainNet<double>(3).parameters();
  const std::vector<double> reference = train_ranks<double>(1, make({}), {.steps = 5});
  const double moved = distance(reference, start);
  for (const int ranks : {1, 3}) {
    const double error =
        distance(train_ranks<double>(ranks, make(GetParam()), {.steps = 5}), reference);
    EXPECT_LT(error, 0.1 * moved) << ranks;
    EXPECT_GT(error, 1e-7 * moved) << ranks;  // Negative control.
  }
}

TEST_P(GradientWire, AndStatisticsWireServeKfacAtEveryFraction) {
  optim::KfacOptions narrow = wire_base();
  narrow.curvature.communication.gradient_wire = narrow.curvature.communication.statistics_wire =
      GetParam();
  const std::vector<double> start = PlainNet<double>(3).parameters();
  const std::vector<double> reference = trained(1, wire_base(), 5);
  const double moved = distance(reference, start);
  for (const double fraction : {0.0, 0.5, 1.0}) {
    narrow.curvature.distribution.grad_worker_fraction = fraction;
    const double error = distance(trained(4, narrow, 5), reference);
    EXPECT_LT(error, 0.1 * moved) << fraction;
    EXPECT_GT(error, 1e-7 * moved) << fraction;
  }
}

INSTANTIATE_TEST_SUITE_P(Types, GradientWire, ::testing::Values(DType::bf16, DType::f16));

class WeightWire : public ::testing::TestWithParam<DType> {};

double rounded(DType type, double x) {
  return type == DType::f16 ? static_cast<double>(to_float(to_f16(x)))
                            : static_cast<double>(to_float(to_bf16(x)));
}

TEST_P(WeightWire, LeavesEveryParameterRounded) {
  optim::KfacOptions options = wire_base();
  options.curvature.communication.weight_wire = GetParam();
  for (const int ranks : {1, 2})
    for (const double w : trained(ranks, options, 3)) EXPECT_EQ(w, rounded(GetParam(), w));
}

TEST_P(WeightWire, GivesTheSameAtEveryNumberOfRanksAndFraction) {
  for (const bool paper : {false, true}) {
    optim::KfacOptions options = wire_base();
    options.curvature.communication.weight_wire = GetParam();
    if (paper) {
      options.momentum_rule = optim::MomentumRule::paper;
      options.initial_lr = 0.05;
      options.rescale = optim::Rescale::always;
    } else {
      options.rescale = optim::Rescale::shrink;
    }
    const std::vector<double> alone = trained(1, options, 6);
    for (const double fraction : {0.0, 0.5, 1.0}) {
      options.curvature.distribution.grad_worker_fraction = fraction;
      // Masters agree to f64; few weights lie so close to the middle of two 16-bit numbers.
      EXPECT_LE(distance(trained(4, options, 6), alone), 1e-10) << paper << ' ' << fraction;
    }
  }
}

/// Largest relative error of rounding to a wire type.
double rounding(DType type) { return type == DType::f16 ? 0x1p-11 : 0x1p-8; }

TEST_P(WeightWire, KeepsUpdatesThatAreSmallerThanItsUnits) {
  // 40 steps down |w|^2 / 2 move masters, and only together the rounded weights: without masters
  // each step, a quarter of the largest rounding error, would be rounded away.
  const double unit = rounding(GetParam());
  const std::vector<double> start{1, -0.75, 0.3125, 1.5};
  const auto run = [&](std::optional<DType> wire) {
    std::vector<double> w = start, g(w.size());
    optim::KfacOptions options = wire_base();
    options.momentum = options.weight_decay = 0;
    options.curvature.communication.weight_wire = wire;
    const auto optimizer = optim::make_kfac(comm::make_self(), options);
    const auto layer = optimizer->add_layer(
        "w", PlainSpec{.weight = 4}, {view_of(w.data(), {4}), {}, view_of(g.data(), {4}), {}});
    optimizer->prepare();
    for (int step = 0; step < 40; ++step) {
      g = w;
      optimizer->grads_ready(layer, Stream::cpu(), {});
      (void)optimizer->step({.lr = unit / 4, .flags = {}}, Stream::cpu());
    }
    return w;
  };
  const std::vector<double> exact = run(std::nullopt), narrow = run(GetParam());
  for (std::size_t i = 0; i < exact.size(); ++i) {
    // One rounding, and as much again for what the rounded weights do to the gradients.
    EXPECT_NEAR(narrow[i], exact[i], 2 * unit * std::abs(exact[i])) << i;
    // Control: (1 - unit / 4)^40 is further from 1 than that.
    EXPECT_GT(std::abs(exact[i] - start[i]), 8 * unit * std::abs(start[i])) << i;
  }
}

TEST_P(WeightWire, RoundsWeightsThatWereRescaled) {
  const auto stepped = [](std::optional<DType> wire, optim::Rescale rescale) {
    std::vector<double> w{3, 4}, g{0.5, -1};
    optim::KfacOptions options = wire_base();
    options.rescale = rescale;
    options.curvature.communication.weight_wire = wire;
    const auto optimizer = optim::make_kfac(comm::make_self(), options);
    const auto fc = optimizer->add_layer("fc", LinearSpec{.in = 2, .out = 1, .bias = false},
                                         {view_of(w.data(), {2}), {}, view_of(g.data(), {2}), {}});
    optimizer->prepare();
    const double x[] = {1, 2, -1, 3}, dy[] = {0.5, -0.25};
    optimizer->record_input(fc, view_of(x, {2, 2}), Stream::cpu(), {});
    optimizer->record_grad_output(fc, view_of(dy, {2, 1}), Stream::cpu(), {});
    optimizer->grads_ready(fc, Stream::cpu(), {});
    EXPECT_TRUE(optimizer->step({.lr = 0.1, .flags = {}}, Stream::cpu()).updated);
    return w;
  };
  const double unit = rounding(GetParam());
  for (const auto rescale : {optim::Rescale::off, optim::Rescale::always, optim::Rescale::shrink}) {
    const std::vector<double> exact = stepped(std::nullopt, rescale),
                              narrow = stepped(GetParam(), rescale);
    // Masters are the exact weights, and are rounded once.
    for (std::size_t i = 0; i < 2; ++i)
      EXPECT_NEAR(narrow[i], exact[i], unit * std::abs(exact[i])) << static_cast<int>(rescale);
    if (rescale == optim::Rescale::off) continue;
    // sqrt(2 d_out), from a norm of about 5.
    EXPECT_NEAR(std::hypot(narrow[0], narrow[1]), std::sqrt(2.0), 2 * unit * std::sqrt(2.0));
  }
}

INSTANTIATE_TEST_SUITE_P(Types, WeightWire, ::testing::Values(DType::bf16, DType::f16));

TEST(HalfGradients, SkipsTheStepWhoseGradientsOutgrowItAndRecovers) {
  comm::run_ranks(2, [](auto comm) {
    std::vector<double> w(4, 1.0), g(4);
    const auto optimizer =
        optim::make_sgd(comm, {.momentum = 0, .communication = {.gradient_wire = DType::f16}});
    const auto layer = optimizer->add_layer(
        "w", PlainSpec{.weight = 4}, {view_of(w.data(), {4}), {}, view_of(g.data(), {4}), {}});
    optimizer->prepare();
    std::string updated;
    for (const double size : {1.0, 1.0, 1e6, 1e6, 1.0}) {
      g.assign(4, comm->rank() == 1 ? size : 0.5);
      const std::vector<double> before = w;
      optimizer->grads_ready(layer, Stream::cpu(), {});
      const kfac::StepReport report = optimizer->step({.lr = 0.25, .flags = {}}, Stream::cpu());
      updated += report.updated ? 'x' : '.';
      EXPECT_EQ(report.agreement.nonfinite_gradient, report.updated ? 0 : 1);
      for (std::size_t i = 0; i < 4; ++i) {
        const double step = report.updated ? 0.25 * (0.5 + size) / 2 : 0;
        EXPECT_NEAR(before[i] - w[i], step, 0x1p-10 * step);
      }
    }
    EXPECT_EQ(updated, "xx.xx");
  });
}

TEST(WeightWires, CountMastersPastTheirRange) {
  const auto steps_with = [](DType wire) {
    // The third one does not reach the end of f16, 65,504.
    std::vector<double> w{65000, -65000, 60000}, g{-1000, 1000, -1000};
    optim::KfacOptions options = wire_base();
    options.momentum = 0;
    options.curvature.communication.weight_wire = wire;
    const auto optimizer = optim::make_kfac(comm::make_self(), options);
    const auto layer = optimizer->add_layer(
        "w", PlainSpec{.weight = 3}, {view_of(w.data(), {3}), {}, view_of(g.data(), {3}), {}});
    optimizer->prepare();
    std::vector<std::int64_t> counts;
    for (const double lr : {0.1, 1.0, 1.0}) {
      optimizer->grads_ready(layer, Stream::cpu(), {});
      counts.push_back(optimizer->step({.lr = lr, .flags = {}}, Stream::cpu()).saturated);
    }
    if (wire == DType::f16) {
      EXPECT_EQ(w[0], 65504);
      EXPECT_EQ(w[1], -65504);
    }
    return counts;
  };
  EXPECT_EQ(steps_with(DType::f16), (std::vector<std::int64_t>{0, 2, 2}));
  EXPECT_EQ(steps_with(DType::bf16), (std::vector<std::int64_t>{0, 0, 0}));
}

TEST(Wires, AreRefusedInOtherTypes) {
  EXPECT_THROW(
      (void)optim::make_sgd(comm::make_self(), {.communication = {.gradient_wire = DType::f64}}),
      InvalidArgument);
  EXPECT_THROW(
      (void)optim::make_lars(comm::make_self(), {.communication = {.gradient_wire = DType::i32}}),
      InvalidArgument);
  optim::KfacOptions options{.curvature = natural_gradient()};
  options.curvature.communication.weight_wire = DType::f64;
  EXPECT_THROW((void)optim::make_kfac(comm::make_self(), options), InvalidArgument);
}

}  // namespace
}  // namespace dkfac::testing
