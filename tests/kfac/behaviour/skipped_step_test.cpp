
#include <gtest/gtest.h>

#include "support/natural_gradient.h"
#include "support/near.h"
#include "support/not_finite.h"
#include "support/plain_training.h"

// A fault on one rank skips the step on all ranks, and leaves no trace in any state.
namespace dkfac::testing {
namespace {

enum class Fault { none, gradient, input, grad_output, batch_norm, loss, no_batch };

kfac::CurvatureOptions skipping_curvature() {
  kfac::CurvatureOptions options = natural_gradient();
  options.damping = 1e-2;
  options.dtype = DType::f64;
  options.communication.bucket_bytes = 2048;
  // Counters that a skipped step must not move.
  options.refresh.statistics_interval = 2;
  options.refresh.inverse_interval = 4;
  options.statistics.new_weight = 0.3;
  return options;
}

struct Iteration {
  std::uint64_t data;  ///< Which batch.
  Fault fault = Fault::none;
};

/// Replaces what layer `layer` shows by data with one bad element.
std::function<void(int, ConstTensorView)> spoil(std::function<void(int, ConstTensorView)> hook,
                                                int layer, double bad, std::vector<double>& copy) {
  return [=, &copy](int index, ConstTensorView x) {
    if (index != layer) return hook(index, x);
    copy.assign(x.data<double>(), x.data<double>() + x.numel());
    copy[copy.size() / 2] = bad;
    hook(index, view_of(copy.data(), x.shape()));
  };
}

struct Result {
  std::vector<double> parameters;
  std::vector<kfac::StepReport> reports;
};

/// One rank's run; faults happen on rank `culprit` only. Skipped steps must leave all parameters.
Result run_rank(const std::shared_ptr<comm::Communicator>& comm, const MakeOptimizer& make,
                const std::vector<Iteration>& iterations, int culprit) {
  using Net = PlainNet<double>;
  const auto optimizer = make(comm);
  Net net(3);
  std::get<LinearSpec>(net.layers[Net::fc1].spec).max_rows = 24;  // where low rank may be
  const auto ids = register_layers(*optimizer, net);
  optimizer->prepare();
  Result result;
  const std::int64_t n = 24 / comm->size();
  std::vector<double> copy;
  for (const Iteration& it : iterations) {
    const Fault fault = comm->rank() == culprit ? it.fault : Fault::none;
    const std::string before = parameter_bits(net);
    StepArgs args{.lr = 0.05, .flags = {}};
    PlainHooks hooks = optimizer_hooks<double>(*optimizer, ids, {1, 24});
    if (fault == Fault::input && hooks.input)
      hooks.input = spoil(hooks.input, Net::fc1, kInf, copy);
    if (fault == Fault::grad_output && hooks.grad_output)
      hooks.grad_output = spoil(hooks.grad_output, Net::conv, kNan, copy);
    if (fault == Fault::batch_norm && hooks.batch_norm)
      hooks.batch_norm = [&, hook = hooks.batch_norm](int layer, ConstTensorView x,
                                                      ConstTensorView mean, ConstTensorView inv_std,
                                                      ConstTensorView dy) {
        copy.assign(dy.data<double>(), dy.data<double>() + dy.numel());
        copy.back() = kNan;
        hook(layer, x, mean, inv_std, view_of(copy.data(), dy.shape()));
      };
    if (fault == Fault::gradient)
      hooks.gradients = [&, hook = hooks.gradients](int layer) {
        if (layer == Net::fc2) net.layers[Net::fc2].dw[1] = kNan;
        hook(layer);
      };
    args.flags.loss_nonfinite = fault == Fault::loss;
    args.flags.data_error = fault == Fault::no_batch;
    if (fault != Fault::no_batch) {
      net.forward(plain_batch<double>(it.data, comm->rank() * n, n), hooks);
      net.backward(1 / static_cast<double>(n), hooks);
    }
    const kfac::StepReport report = optimizer->step(args, Stream::cpu());
    result.reports.push_back(report);
    EXPECT_EQ(report.updated, it.fault == Fault::none);
    if (!report.updated) {
      EXPECT_EQ(parameter_bits(net), before);
    }
    comm::require_equal(*comm, parameter_bits(net), "the weights");
  }
  result.parameters = net.parameters();
  return result;
}

Result run(int ranks, const MakeOptimizer& make, const std::vector<Iteration>& iterations,
           int culprit = 1) {
  Result result;
  comm::run_ranks(ranks, [&](std::shared_ptr<comm::Communicator> comm) {
    Result mine = run_rank(comm, make, iterations, culprit);
    if (comm->rank() == 0) result = std::move(mine);
  });
  return result;
}

const std::vector<Iteration> kClean{{0}, {1}, {2}, {3}, {4}, {5}, {6}};

std::vector<Iteration> with_fault(Fault fault) {
  std::vector<Iteration> all = kClean;
  // Before the first step that counts, and before one with statistics and inverses due.
  all.insert(all.begin() + 4, {99, fault});
  all.insert(all.begin(), {98, fault});
  return all;
}

std::unique_ptr<optim::Optimizer> kfac_optimizer(std::shared_ptr<comm::Communicator> comm) {
  return optim::make_kfac(std::move(comm), {.curvature = skipping_curvature()});
}

int ranks_with(const StepAgreement& agreement, Fault fault) {
  switch (fault) {
    case Fault::gradient:
      return agreement.nonfinite_gradient;
    case Fault::loss:
      return agreement.nonfinite_loss;
    case Fault::no_batch:
      return agreement.data_error;
    default:
      return agreement.nonfinite_statistic;
  }
}

class SkippedStep : public ::testing::TestWithParam<Fault> {};

TEST_P(SkippedStep, IsAsIfItHadNeverBeen) {
  const Result clean = run(3, kfac_optimizer, kClean);
  for (const int culprit : {0, 2}) {
    const Result faulty = run(3, kfac_optimizer, with_fault(GetParam()), culprit);
    EXPECT_EQ(faulty.parameters, clean.parameters);
    for (const std::size_t skipped : {std::size_t{0}, std::size_t{5}}) {
      EXPECT_FALSE(faulty.reports[skipped].updated);
      EXPECT_EQ(ranks_with(faulty.reports[skipped].agreement, GetParam()), 1);
      EXPECT_FALSE(faulty.reports[skipped].statistics_refreshed);
    }
    EXPECT_TRUE(faulty.reports[6].inverses_refreshed);  // postponed, not lost
  }
}

std::string name_of_fault(const ::testing::TestParamInfo<Fault>& test) {
  constexpr const char* kNames[] = {"None",      "Gradient", "Input",  "GradOutput",
                                    "BatchNorm", "Loss",     "NoBatch"};
  return kNames[static_cast<std::size_t>(test.param)];
}

INSTANTIATE_TEST_SUITE_P(Faults, SkippedStep,
                         ::testing::Values(Fault::gradient, Fault::input, Fault::grad_output,
                                           Fault::batch_norm, Fault::loss, Fault::no_batch),
                         name_of_fault);

TEST(SkippedStepOfHalfPrecision, LeavesTheOperandScalesAlone) {
  const MakeOptimizer make = [](auto comm) {
    optim::KfacOptions options{.curvature = skipping_curvature()};
    options.curvature.statistics.operand = DType::f16;
    return optim::make_kfac(comm, options);
  };
  for (const Fault fault : {Fault::input, Fault::grad_output})
    EXPECT_EQ(run(2, make, with_fault(fault)).parameters, run(2, make, kClean).parameters);
}

/// Rules of when statistics and inverses are renewed, and what they are renewed from.
std::vector<kfac::CurvatureOptions> schedules() {
  kfac::CurvatureOptions adaptive = skipping_curvature(), spread = skipping_curvature(),
                         eigen = skipping_curvature();
  adaptive.refresh.statistics_interval = adaptive.refresh.inverse_interval = 1;
  adaptive.refresh.staleness = kfac::Staleness::adaptive;
  adaptive.refresh.similarity = 0.6;
  spread.refresh.inverse_interval = 3;
  spread.refresh.stagger_inverses = true;
  eigen.inverse.method = kfac::InverseMethod::eigen;
  kfac::CurvatureOptions full = skipping_curvature(), low_rank = skipping_curvature();
  full.statistics.norm_fisher = kfac::NormFisher::full;
  low_rank.statistics.new_weight = 1;
  return {adaptive, spread, eigen, full, low_rank};
}

TEST(SkippedStepOfSchedules, LeavesWhatIsDueToTheNextStep) {
  for (const kfac::CurvatureOptions& options : schedules()) {
    const MakeOptimizer make = [options](auto comm) {
      return optim::make_kfac(comm, {.curvature = options});
    };
    const Result clean = run(2, make, kClean);
    std::vector<Fault> faults{Fault::loss, Fault::no_batch};
    // Under the adaptive rule a statistic is only looked at in its own steps (adaptive_test.cpp).
    if (options.refresh.staleness == kfac::Staleness::fixed)
      faults = {Fault::input, Fault::batch_norm};
    for (const Fault fault : faults)
      EXPECT_EQ(run(2, make, with_fault(fault)).parameters, clean.parameters);
  }
}

TEST(SkippedStepOfEkfac, ForgetsTheInputThatItKeptAndTheScales) {
  const auto train = [](bool faulty) {
    kfac::CurvatureOptions options = skipping_curvature();
    options.refresh.statistics_interval = 1;
    options.refresh.inverse_interval = 100;
    options.inverse.method = kfac::InverseMethod::ekfac;
    kfac::Preconditioner preconditioner(comm::make_self(), options);
    const auto fc = preconditioner.add_layer("fc", LinearSpec{.in = 2, .out = 2, .bias = false});
    std::vector<double> g;
    for (int step = 0; step < 5; ++step) {
      const bool bad = step == 2 || step == 3;
      if (bad && !faulty) continue;
      const double r = 0.5 * step;
      std::vector<double> x{1, 2 + r, -1, r}, dy{r, 1, 0.5, -r};
      // Once the scales alone overflow, once a batch ends after its forward pass.
      if (step == 2) x[0] = dy[0] = 1e100;
      preconditioner.record_input(fc, view_of(x.data(), {2, 2}));
      if (step != 3) preconditioner.record_grad_output(fc, view_of(dy.data(), {2, 2}));
      g = {1, 2, 3, 4};
      const std::vector<kfac::LayerGrad> grads{{fc, view_of(g.data(), {2, 2}), {}}};
      const kfac::StepReport report =
          preconditioner.step(grads, Stream::cpu(), {.lr = 0, .flags = {.data_error = step == 3}});
      EXPECT_EQ(report.updated, !bad);
      EXPECT_EQ(report.agreement.nonfinite_statistic, step == 2 ? 1 : 0);
    }
    return g;
  };
  EXPECT_EQ(train(true), train(false));
}

TEST(SkippedStepOfMicroBatches, DropsTheGoodPartsWithTheBadOne) {
  const auto train = [](int bad_record, bool faulty) {
    std::vector<double> last;
    comm::run_ranks(2, [&](std::shared_ptr<comm::Communicator> comm) {
      kfac::CurvatureOptions options = skipping_curvature();
      options.refresh.statistics_interval = options.refresh.inverse_interval = 1;
      options.statistics.micro_batches = 3;
      kfac::Preconditioner preconditioner(comm, options);
      const auto fc = preconditioner.add_layer("fc", LinearSpec{.in = 2, .out = 2, .bias = false});
      for (int step = 0; step < 3; ++step) {
        const bool bad = step == 1;
        if (bad && !faulty) continue;
        for (int record = 0; record < 3; ++record) {
          const double r = comm->rank() + 0.5 * step + 0.25 * record;
          std::vector<double> x{1, 2 + r, -1, r}, dy{r, 1, 0.5, -r};
          if (bad && record == bad_record && comm->rank() == 1) dy[0] = kInf;
          preconditioner.record_input(fc, view_of(x.data(), {2, 2}));
          preconditioner.record_grad_output(fc, view_of(dy.data(), {2, 2}));
        }
        std::vector<double> g{1, 2, 3, 4};
        const std::vector<kfac::LayerGrad> grads{{fc, view_of(g.data(), {2, 2}), {}}};
        EXPECT_EQ(preconditioner.step(grads).updated, !bad);
        if (comm->rank() == 0) last = g;
      }
    });
    return last;
  };
  for (const int bad_record : {0, 2}) EXPECT_EQ(train(bad_record, true), train(0, false));
}

TEST(SkippedStepOfFirstOrder, IsAsIfItHadNeverBeen) {
  const auto sgd = [](auto comm) { return optim::make_sgd(comm, {}); };
  const auto lars = [](auto comm) { return optim::make_lars(comm, {.eta = 0.1}); };
  const auto muon = [](auto comm) { return optim::make_muon(comm, {}); };
  for (const MakeOptimizer& make : {MakeOptimizer(sgd), MakeOptimizer(lars), MakeOptimizer(muon)})
    for (const Fault fault : {Fault::gradient, Fault::loss, Fault::no_batch})
      EXPECT_EQ(run(2, make, with_fault(fault)).parameters, run(2, make, kClean).parameters);
}

TEST(SkippedStepControl, OneMoreGoodStepChangesTheWeights) {
  std::vector<Iteration> more = kClean;
  more.insert(more.begin() + 4, {99});
  EXPECT_FALSE(near(run(2, kfac_optimizer, more).parameters,
                    run(2, kfac_optimizer, kClean).parameters, 1e-6));
}

TEST(SkippedStepOfPreconditioner, LeavesGradientsAndStatisticsAlone) {
  const auto train = [](bool faulty) {
    std::vector<double> last;
    comm::run_ranks(2, [&](std::shared_ptr<comm::Communicator> comm) {
      kfac::CurvatureOptions options = skipping_curvature();
      options.refresh.statistics_interval = options.refresh.inverse_interval = 1;
      kfac::Preconditioner preconditioner(comm, options);
      const auto fc = preconditioner.add_layer("fc", LinearSpec{.in = 2, .out = 2, .bias = false});
      std::vector<double> g;
      for (int step = 0; step < 4; ++step) {
        const bool bad = step == 2;
        if (bad && !faulty) continue;
        const double r = comm->rank() + 0.5 * step;
        std::vector<double> x{1, 2 + r, -1, r}, dy{r, 1, 0.5, -r};
        if (bad && comm->rank() == 0) x[3] = kNan;
        preconditioner.record_input(fc, view_of(x.data(), {2, 2}));
        preconditioner.record_grad_output(fc, view_of(dy.data(), {2, 2}));
        g = {1, 2, 3, 4};
        const std::vector<kfac::LayerGrad> grads{{fc, view_of(g.data(), {2, 2}), {}}};
        const kfac::StepReport report = preconditioner.step(grads);
        EXPECT_EQ(report.updated, !bad);
        EXPECT_EQ(report.agreement.nonfinite_statistic, bad ? 1 : 0);
        if (bad) {
          EXPECT_EQ(g, (std::vector<double>{1, 2, 3, 4}));
        }
      }
      if (comm->rank() == 1) last = g;
    });
    return last;
  };
  EXPECT_EQ(train(true), train(false));
}

TEST(SkippedStepOfPreconditioner, SeesAGradientThatIsNotFinite) {
  kfac::Preconditioner preconditioner(comm::make_self(), skipping_curvature());
  const auto fc = preconditioner.add_layer("fc", LinearSpec{.in = 1, .out = 1, .bias = false});
  const auto plain = preconditioner.add_layer("gain", PlainSpec{.weight = 1});
  double x = 1, w = 1, p = kInf;
  preconditioner.record_input(fc, view_of(&x, {1, 1}));
  preconditioner.record_grad_output(fc, view_of(&x, {1, 1}));
  const std::vector<kfac::LayerGrad> grads{{fc, view_of(&w, {1}), {}},
                                           {plain, view_of(&p, {1}), {}}};
  const kfac::StepReport report = preconditioner.step(grads);
  EXPECT_FALSE(report.updated);
  EXPECT_EQ(report.agreement.nonfinite_gradient, 1);
}

TEST(Stop, IsCountedAndDoesNotSkip) {
  comm::run_ranks(2, [](auto comm) {
    const auto optimizer = optim::make_sgd(comm, {});
    double w = 1, g = 1;
    const auto id = optimizer->add_layer("a", PlainSpec{.weight = 1},
                                         {view_of(&w, {1}), {}, view_of(&g, {1}), {}});
    optimizer->prepare();
    optimizer->grads_ready(id, Stream::cpu(), {});
    const auto report =
        optimizer->step({.lr = 0.5, .flags = {.stop = comm->rank() == 1}}, Stream::cpu());
    EXPECT_TRUE(report.updated);
    EXPECT_EQ(report.agreement.stop, 1);
    EXPECT_EQ(w, 0.5);
  });
}

}  // namespace
}  // namespace dkfac::testing
