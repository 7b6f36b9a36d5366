#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/natural_gradient.h"
#include "support/near.h"
#include "support/plain_mlp.h"
#include "support/plain_training.h"

// What must not change the result: ranks, repetition, threads of control, micro-batches, owners.
// The numbers F1 to F8 are those of docs/project/proof.md.
namespace dkfac::testing {
namespace {

using Weights = std::vector<double>;
using Cnn = PlainNet<double>;
using Mlp = PlainMlp<double>;

// Where training diverges, as at a rate of 0.05 here, it magnifies rounding without bound, and no
// bar holds.
constexpr double kDamping = 1e-3, kRate = 0.01;
constexpr double kF1 = 1e-10;
constexpr int kF1Steps = short_or_full(12, 100);

TrainSettings settings(int steps) {
  TrainSettings settings;
  settings.steps = steps;
  settings.lr = [](int) { return kRate; };
  return settings;
}

optim::KfacOptions options(DType dtype = DType::f64) {
  optim::KfacOptions options{.curvature = natural_gradient()};
  options.curvature.damping = kDamping;
  options.curvature.dtype = dtype;
  options.curvature.communication.bucket_bytes = 2048;  // Several buckets per exchange.
  return options;
}

MakeOptimizer maker(const optim::KfacOptions& options, Backend backend = Backend::fast) {
  return [options, backend](auto comm) {
    return optim::make_kfac(comm, options, Device::cpu(), {.backend = backend});
  };
}

template <class Net>
class EqualityOverRanks : public ::testing::Test {};
using Nets = ::testing::Types<Cnn, Mlp>;
struct NetNames {
  template <class Net>
  static std::string GetName(int) {
    return std::is_same_v<Net, Cnn> ? "Cnn" : "Mlp";
  }
};
TYPED_TEST_SUITE(EqualityOverRanks, Nets, NetNames);

TYPED_TEST(EqualityOverRanks, F1HundredStepsInDoublePrecision) {
  for (const Backend backend : {Backend::fast, Backend::reference}) {
    const Weights alone =
        train_ranks<double, TypeParam>(1, maker(options(), backend), settings(kF1Steps));
    const bool fast = backend == Backend::fast;
    for (const int ranks : fast ? std::vector{2, 3, 4} : std::vector{3})
      EXPECT_TRUE(
          near(train_ranks<double, TypeParam>(ranks, maker(options(), backend), settings(kF1Steps)),
               alone, kF1))
          << ranks << " ranks";
    // Control: a batch without one ghost group differs.
    TrainSettings shorter = settings(kF1Steps);
    shorter.global_batch = 22;
    EXPECT_FALSE(
        near(train_ranks<double, TypeParam>(1, maker(options(), backend), shorter), alone, kF1));
  }
}

TYPED_TEST(EqualityOverRanks, F4F5RepeatedRunsAndAllRanksHaveEqualBits) {
  // train() compares the ranks after each step.
  for (const int ranks : {1, 3}) {
    const Weights first = train_ranks<double, TypeParam>(ranks, maker(options()));
    EXPECT_EQ((train_ranks<double, TypeParam>(ranks, maker(options()))), first);
  }
}

/// Parameters after `steps` steps in single precision.
template <class Net>
Weights train_f32(int ranks, int steps, const optim::KfacOptions& kfac) {
  return train_ranks<float, Net>(ranks, maker(kfac), settings(steps));
}

template <class Net>
void expect_equal_in_f32(int steps) {
  const Weights alone = train_f32<Net>(1, steps, options(DType::f32));
  for (const int ranks : {2, 3, 4})
    EXPECT_TRUE(near(train_f32<Net>(ranks, steps, options(DType::f32)), alone, 1e-5))
        << ranks << " ranks";
  // Control: a damping that differs by a percent changes the result.
  optim::KfacOptions other = options(DType::f32);
  other.curvature.damping *= 1.01;
  EXPECT_FALSE(near(train_f32<Net>(1, steps, other), alone, 1e-5));
}

TEST(EqualityInSinglePrecision, F2OneStepFromTheSameState) {
  expect_equal_in_f32<PlainNet<float>>(1);
  expect_equal_in_f32<PlainMlp<float>>(1);
}

TEST(EqualityInSinglePrecision, F3TenStepsOfATanhNet) {
  // A ReLU would not do: one pre-activation near zero changes sign, and the runs part.
  expect_equal_in_f32<PlainMlp<float>>(10);
}

kfac::CurvatureSettings intervals(int statistics, int inverses) {
  return {.damping = kDamping, .statistics_interval = statistics, .inverse_interval = inverses};
}
constexpr int kNever = 1 << 30;

TEST(EqualityOfStaleness, F6IntervalsOfOneAreNone) {
  const MakeOptimizer make = maker(options());
  TrainSettings set_each_step = settings(20);
  set_each_step.before_step = [](optim::Optimizer& kfac, int) {
    kfac.set_curvature(intervals(1, 1));
  };
  EXPECT_EQ((train_ranks<double, Cnn>(2, make, set_each_step)),
            (train_ranks<double, Cnn>(2, make, settings(20))));
  TrainSettings twos = settings(20);
  twos.before_step = [](optim::Optimizer& kfac, int) { kfac.set_curvature(intervals(2, 2)); };
  EXPECT_FALSE(near(train_ranks<double, Cnn>(2, make, twos),
                    train_ranks<double, Cnn>(2, make, settings(20)), 1e-3));
}

TEST(EqualityOfStaleness, F6StatisticsDoNotMatterOnceInversesAreFrozen) {
  // No layer but those with inverses: a BatchNorm uses its statistic at once.
  const auto frozen_from = [](int step, int statistics) {
    TrainSettings frozen = settings(20);
    frozen.before_step = [=](optim::Optimizer& kfac, int at) {
      if (at == step) kfac.set_curvature(intervals(statistics, kNever));
    };
    return train_ranks<double, Mlp>(2, maker(options()), frozen);
  };
  EXPECT_EQ(frozen_from(5, kNever), frozen_from(5, 1));
  EXPECT_FALSE(near(frozen_from(5, 1), frozen_from(9, 1), 1e-6));  // control
}

TEST(EqualityOfStaleness, F6IntervalsMayChangeInTheMidstOfOne) {
  for (const auto& [before, after] : {std::pair{10, 1}, {1, 10}, {10, 3}}) {
    TrainSettings changed = settings(12);
    changed.before_step = [before = before, after = after](optim::Optimizer& kfac, int step) {
      kfac.set_curvature(step < 5 ? intervals(before, before) : intervals(after, after));
    };
    std::vector<std::uint64_t> bytes;
    comm::run_ranks(2, [&](auto comm) {
      (void)train<double, Cnn>(comm, maker(options()), changed, [&](const auto& report) {
        if (comm->rank() == 0) bytes.push_back(report.bytes);
      });
    });
    // Step 5 has statistics where the new interval has passed, and sends none elsewhere. In the
    // first step ranks also exchange which layers have no inverse.
    const std::uint64_t all = bytes[0] - 8 * Cnn(1).layers.size();
    EXPECT_EQ(bytes[5], after < 10 ? all : bytes[11]) << before << " to " << after;
    EXPECT_EQ(bytes[11] == all, after < 10) << before << " to " << after;
    EXPECT_TRUE(near(train_ranks<double, Cnn>(2, maker(options()), changed),
                     train_ranks<double, Cnn>(1, maker(options()), changed), kF1))
        << before << " to " << after;
  }
}

kfac::CurvatureSettings settings_of(double damping, int statistics, int inverses) {
  return {.damping = damping,
          .statistics_interval = statistics,
          .inverse_interval = inverses,
          .micro_batches = 1};
}

TEST(CurvatureSettings, LeaveWhatTheyDoNotGive) {
  optim::KfacOptions lazy = options();
  lazy.curvature.refresh.statistics_interval = 2;
  lazy.curvature.refresh.inverse_interval = 4;
  const auto weights = [&](const kfac::CurvatureSettings& changed) {
    TrainSettings run = settings(8);
    run.before_step = [&](optim::Optimizer& kfac, int step) {
      if (step >= 3) kfac.set_curvature(changed);
    };
    return train_ranks<double, Mlp>(2, maker(lazy), run);
  };
  const Weights unchanged = weights(
      {.damping = kDamping, .statistics_interval = 2, .inverse_interval = 4, .micro_batches = 1});
  EXPECT_EQ(weights({}), unchanged);
  for (const auto& [one, all] : {std::pair<kfac::CurvatureSettings, kfac::CurvatureSettings>{
                                     {.damping = 2 * kDamping}, settings_of(2 * kDamping, 2, 4)},
                                 {{.statistics_interval = 1}, settings_of(kDamping, 1, 4)},
                                 {{.inverse_interval = 1}, settings_of(kDamping, 2, 1)}}) {
    const Weights changed = weights(one);
    EXPECT_EQ(changed, weights(all));
    EXPECT_NE(changed, unchanged);  // control
  }
}

TEST(CurvatureSettings, RefuseValuesOutOfRange) {
  kfac::Preconditioner preconditioner(comm::make_self(), options().curvature);
  for (const kfac::CurvatureSettings& wrong : {kfac::CurvatureSettings{.damping = 0},
                                               {.relative_damping = 0},
                                               {.statistics_interval = -1},
                                               {.inverse_interval = -1},
                                               {.micro_batches = 0}})
    EXPECT_THROW(preconditioner.set_curvature(wrong), InvalidArgument);
}

/// The preconditioned direction of one fixed gradient in every step, while data change.
std::vector<Weights> directions(kfac::InverseMethod method, int frozen_from) {
  kfac::CurvatureOptions curvature = options().curvature;
  curvature.inverse.method = method;
  kfac::Preconditioner preconditioner(comm::make_self(), curvature);
  const auto fc = preconditioner.add_layer("fc", LinearSpec{.in = 6, .out = 4, .bias = false});
  std::vector<Weights> all;
  for (int step = 0; step < 10; ++step) {
    if (step == frozen_from) preconditioner.set_curvature(intervals(kNever, kNever));
    Random random(40 + static_cast<std::uint64_t>(step));
    Weights x(8 * 6), dy(8 * 4), v(24, 0.5);
    fill_normal(view_of(x.data(), {8, 6}), 0, 1, random);
    fill_normal(view_of(dy.data(), {8, 4}), 0, 1, random);
    if (preconditioner.wants_statistics()) {
      preconditioner.record_input(fc, view_of(x.data(), {8, 6}));
      preconditioner.record_grad_output(fc, view_of(dy.data(), {8, 4}));
    }
    const std::vector<kfac::LayerGrad> grads{{fc, view_of(v.data(), {4, 6}), {}}};
    EXPECT_TRUE(preconditioner.step(grads).updated);
    all.push_back(v);
  }
  return all;
}

TEST(EqualityOfStaleness, F6AnInfiniteIntervalIsAFrozenInverse) {
  for (const auto method : {kfac::InverseMethod::cholesky, kfac::InverseMethod::eigen}) {
    const auto frozen = directions(method, 5), renewed = directions(method, kNever);
    for (std::size_t step = 0; step < 5; ++step) EXPECT_EQ(frozen[step], renewed[step]) << step;
    for (std::size_t step = 5; step < 10; ++step) {
      EXPECT_EQ(frozen[step], frozen[4]) << step;
      EXPECT_FALSE(near(renewed[step], frozen[4], 1e-3)) << step;  // control
    }
  }
}

/// Ten steps whose local batch comes in `parts` micro-batches, and the gradients of all together,
/// but for the part that is forgotten.
template <class Net>
Weights train_in_parts(int ranks, std::int64_t parts, LossReduction reduction,
                       std::int64_t forgotten = -1) {
  optim::KfacOptions kfac = options();
  kfac.curvature.loss_reduction = reduction;
  kfac.curvature.statistics.micro_batches = static_cast<int>(parts);
  const bool mean = reduction == LossReduction::local_mean;
  Weights parameters;
  comm::run_ranks(ranks, [&](std::shared_ptr<comm::Communicator> comm) {
    const auto optimizer = optim::make_kfac(comm, kfac);
    Net net(3);
    const auto ids = register_layers(*optimizer, net);
    optimizer->prepare();
    const std::int64_t local = 24 / ranks, n = local / parts;
    for (int step = 0; step < 10; ++step) {
      std::vector<Weights> sums(2 * net.layers.size());
      for (std::int64_t p = 0; p < parts; ++p) {
        const PlainHooks hooks = optimizer_hooks<double>(*optimizer, ids, {1, 24}, false);
        net.forward(
            plain_batch<double>(static_cast<std::uint64_t>(step), comm->rank() * local + p * n, n),
            hooks);
        net.backward(mean ? 1 / static_cast<double>(local) : 1, hooks);
        if (p == forgotten) continue;
        for (std::size_t i = 0; i < sums.size(); ++i) {
          const Weights& d = i % 2 == 0 ? net.layers[i / 2].dw : net.layers[i / 2].db;
          sums[i].resize(d.size());
          for (std::size_t k = 0; k < d.size(); ++k) sums[i][k] += d[k];
        }
      }
      for (std::size_t l = net.layers.size(); l-- > 0;) {
        std::copy(sums[2 * l].begin(), sums[2 * l].end(), net.layers[l].dw.begin());
        std::copy(sums[2 * l + 1].begin(), sums[2 * l + 1].end(), net.layers[l].db.begin());
        optimizer->grads_ready(ids[l], Stream::cpu(), {1, 24});
      }
      EXPECT_TRUE(optimizer->step({.lr = kRate, .flags = {}}, Stream::cpu()).updated);
    }
    if (comm->rank() == 0) parameters = net.parameters();
  });
  return parameters;
}

TYPED_TEST(EqualityOverRanks, F7MicroBatchesAreOneBatch) {
  for (const auto reduction : {LossReduction::local_mean, LossReduction::sum}) {
    const Weights whole = train_in_parts<TypeParam>(1, 1, reduction);
    for (const auto& [ranks, parts] : {std::pair{1, 2}, {1, 4}, {1, 12}, {2, 3}, {3, 2}})
      EXPECT_TRUE(near(train_in_parts<TypeParam>(ranks, parts, reduction), whole, 1e-12))
          << ranks << " ranks, " << parts << " micro-batches";
  }
  // Control: a twelfth of the gradient is missed.
  EXPECT_FALSE(near(train_in_parts<TypeParam>(1, 12, LossReduction::sum, 11),
                    train_in_parts<TypeParam>(1, 1, LossReduction::sum), 1e-3));
}

TEST(EqualityOfDistribution, F8BucketsAndOverlapChangeNoBit) {
  const Weights expected = train_ranks<double, Cnn>(3, maker(options()));
  for (const bool overlap : {true, false})
    for (const std::int64_t bytes : {1, 700, 1 << 30}) {
      optim::KfacOptions other = options();
      other.curvature.communication.overlap = overlap;
      other.curvature.communication.bucket_bytes = bytes;
      EXPECT_EQ((train_ranks<double, Cnn>(3, maker(other))), expected) << overlap << bytes;
    }
}

TEST(EqualityOfDistribution, F8OwnersMayHaveOtherSamples) {
  TrainSettings reversed = settings(20);
  reversed.reversed_shares = true;
  const Weights forward = train_ranks<double, Cnn>(4, maker(options()), settings(20));
  const Weights backward = train_ranks<double, Cnn>(4, maker(options()), reversed);
  EXPECT_TRUE(near(backward, forward, 1e-12));
  EXPECT_NE(backward, forward);  // Control: sums in another order, so the ranks did swap.
}

}  // namespace
}  // namespace dkfac::testing
