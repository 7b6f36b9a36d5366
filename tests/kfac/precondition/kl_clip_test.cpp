#include "kfac/precondition/kl_clip.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"
#include "dkfac/kfac/inverse.h"

#include "support/natural_gradient.h"
#include "support/near.h"
#include "support/plain_training.h"

namespace dkfac::testing {
namespace {

using kfac::kl_clip_factor;

TEST(KlFactor, IsTheFormula) {
  EXPECT_EQ(kl_clip_factor(1e-3, 0.1, 0.05), 1);  // lr^2 sum = 5e-4 < kappa
  EXPECT_DOUBLE_EQ(kl_clip_factor(1e-3, 0.1, 10), std::sqrt(1e-3 / 0.1));
  EXPECT_DOUBLE_EQ(kl_clip_factor(1, 2, 4), 0.25);  // sqrt(1 / (4 * 4))
}

TEST(KlFactor, LeavesADirectionWithoutLengthAlone) {
  EXPECT_EQ(kl_clip_factor(1e-3, 0.1, 0), 1);
  EXPECT_EQ(kl_clip_factor(1e-3, 0, 5), 1);
  EXPECT_EQ(kl_clip_factor(1e-3, 0.1, -5), 1);
}

TEST(KlFactor, IsOffAtZeroAndRefusesWhatIsNoBound) {
  EXPECT_EQ(kl_clip_factor(0, 0.1, 10), 1);
  EXPECT_THROW((void)kl_clip_factor(-1, 0.1, 10), InvalidArgument);
  EXPECT_THROW((void)kl_clip_factor(std::nan(""), 0.1, 10), InvalidArgument);
}

TEST(KlFactor, StopsADirectionThatIsNotFinite) {
  EXPECT_EQ(kl_clip_factor(1e-3, 0.1, std::numeric_limits<double>::infinity()), 0);
  EXPECT_EQ(kl_clip_factor(1e-3, 0.1, std::nan("")), 0);
  std::vector<double> u{1, std::nan(""), std::numeric_limits<double>::infinity()};
  double factor = 0;
  Context ctx;
  kfac::scale_direction(ctx, view_of(&factor, {1}), view_of(u.data(), {3}));
  EXPECT_EQ(u, (std::vector<double>{0, 0, 0}));
}

TEST(KlClip, AddsWhatEachRankCountsOnce) {
  comm::run_ranks(3, [](auto comm) {
    Context ctx;
    kfac::KlClip clip(ctx, 1);
    clip.begin();
    const double r = comm->rank() + 1;
    std::vector<double> v{1, 2}, u{r, 3 * r};
    clip.add(view_of(v.data(), {2}), view_of(u.data(), {2}));
    clip.add({}, {});
    const comm::WorkerGrid grid = comm::make_worker_grid(comm, 0);
    clip.add_up();
    EXPECT_EQ(*clip.total(grid).data<double>(), 7 * (1 + 2 + 3));
  });
}

kfac::CurvatureOptions curvature(double kappa) {
  kfac::CurvatureOptions options = natural_gradient();
  options.damping = 1e-2;
  options.dtype = DType::f64;
  options.kl_clip = kappa;
  return options;
}

/// Gradients and directions of one step of the Preconditioner, concatenated over covered layers.
struct OneStep {
  std::vector<std::vector<double>> gradients, directions;
  double factor = 0;
};

/// Multipliers of the rate of weight and bias of the layers, by their index.
using Rates = std::function<std::pair<double, double>(std::size_t layer)>;

OneStep one_step(const std::shared_ptr<comm::Communicator>& comm, double kappa, double lr,
                 const Rates& rates = {}) {
  kfac::Preconditioner preconditioner(comm, curvature(kappa));
  PlainNet<double> net(3);
  std::vector<kfac::LayerGrad> grads;
  for (auto& l : net.layers) {
    const auto view = [](std::vector<double>& v) {
      return v.empty() ? TensorView{} : view_of(v.data(), {static_cast<std::int64_t>(v.size())});
    };
    grads.push_back({preconditioner.add_layer(l.name, l.spec), view(l.dw), view(l.db)});
    if (!rates) continue;
    const auto [weight, bias] = rates(grads.size() - 1);
    preconditioner.set_rates(grads.back().layer, weight, bias);
  }
  PlainHooks hooks;
  hooks.input = [&](int layer, ConstTensorView x) {
    preconditioner.record_input(grads[pos(layer)].layer, x);
  };
  hooks.grad_output = [&](int layer, ConstTensorView dy) {
    preconditioner.record_grad_output(grads[pos(layer)].layer, dy);
  };
  hooks.batch_norm = [&](int layer, ConstTensorView x, ConstTensorView mean,
                         ConstTensorView inv_std, ConstTensorView dy) {
    preconditioner.record_normalization(grads[pos(layer)].layer, x, mean, inv_std, dy);
  };
  net.forward(plain_batch<double>(0, 0, 12), hooks);  // The same on every rank.
  net.backward(1.0 / 12, hooks);
  OneStep result;
  const auto read = [&](std::vector<std::vector<double>>& out) {
    for (const auto& l : net.layers) {
      if (std::holds_alternative<PlainSpec>(l.spec)) continue;
      out.push_back(l.dw);
      out.back().insert(out.back().end(), l.db.begin(), l.db.end());
    }
  };
  read(result.gradients);
  result.factor = preconditioner.step(grads, Stream::cpu(), {.lr = lr, .flags = {}}).kl_factor;
  read(result.directions);
  return result;
}

TEST(KlClip, ScalesEveryDirectionByTheFormulaOverAllCoveredLayers) {
  constexpr double kLr = 0.3, kKappa = 1e-4;
  const OneStep free = one_step(comm::make_self(), 0, kLr);
  EXPECT_EQ(free.factor, 1);
  double sum = 0, terms = 0;
  for (std::size_t l = 0; l < free.gradients.size(); ++l)
    for (std::size_t i = 0; i < free.gradients[l].size(); ++i, ++terms)
      sum += free.gradients[l][i] * free.directions[l][i];
  const double nu = std::sqrt(kKappa / (kLr * kLr * sum));
  ASSERT_LT(nu, 0.5);
  for (const int ranks : {1, 3})
    comm::run_ranks(ranks, [&](auto comm) {
      const OneStep clipped = one_step(comm, kKappa, kLr);
      // A sum of `terms` products and a rounded statistic per rank.
      const double tolerance = 10 * terms * eps<double>;
      EXPECT_NEAR(clipped.factor, nu, tolerance * nu);
      for (std::size_t l = 0; l < free.directions.size(); ++l) {
        std::vector<double> expected = free.directions[l];
        for (double& u : expected) u *= nu;
        EXPECT_TRUE(near(clipped.directions[l], expected, 1e3 * tolerance)) << l;
      }
    });
}

/// The formula for one_step() without a clip, of layers with rates of their own.
double expected_factor(const OneStep& free, double kappa, double lr, const Rates& rates) {
  const PlainNet<double> net(3);
  double sum = 0;
  std::size_t covered = 0;
  for (std::size_t layer = 0; layer < net.layers.size(); ++layer) {
    if (std::holds_alternative<PlainSpec>(net.layers[layer].spec)) continue;
    const auto [weight, bias] = rates(layer);
    const auto &v = free.gradients[covered], &u = free.directions[covered++];
    for (std::size_t i = 0; i < v.size(); ++i) {
      const double rate = lr * (i < net.layers[layer].dw.size() ? weight : bias);
      sum += rate * rate * u[i] * v[i];
    }
  }
  return sum > 0 ? std::min(1.0, std::sqrt(kappa / sum)) : 1;
}

/// The factor of the first step of make_kfac(), with the samples of one_step() on every rank.
double optimizer_factor(const std::shared_ptr<comm::Communicator>& comm, double kappa, double lr,
                        const Rates& rates) {
  const auto optimizer = optim::make_kfac(comm, {.curvature = curvature(kappa)});
  PlainNet<double> net(3);
  std::vector<LayerId> ids;
  for (auto& l : net.layers) {
    const auto view = [](std::vector<double>& v) {
      return v.empty() ? TensorView{} : view_of(v.data(), {static_cast<std::int64_t>(v.size())});
    };
    const auto [weight, bias] = rates(ids.size());
    ids.push_back(optimizer->add_layer(l.name, l.spec,
                                       {.weight = view(l.w),
                                        .bias = view(l.b),
                                        .weight_grad = view(l.dw),
                                        .bias_grad = view(l.db),
                                        .weight_lr = weight,
                                        .bias_lr = bias}));
  }
  optimizer->prepare();
  const PlainHooks hooks = optimizer_hooks<double>(*optimizer, ids, {});
  net.forward(plain_batch<double>(0, 0, 12), hooks);
  net.backward(1.0 / 12, hooks);
  return optimizer->step({.lr = lr, .flags = {}}, Stream::cpu()).kl_factor;
}

TEST(KlClip, HeedsTheRateOfEachParameter) {
  constexpr double kLr = 0.3, kKappa = 1e-5;
  const OneStep free = one_step(comm::make_self(), 0, kLr);
  const auto only_first = [](double others) {
    return [others](std::size_t layer) {
      return layer == 0 ? std::pair(1.0, 1.0) : std::pair(others, others);
    };
  };
  const auto only_others = [](double first) {
    return [first](std::size_t layer) {
      return layer == 0 ? std::pair(first, first) : std::pair(1.0, 1.0);
    };
  };
  const Rates apart = [](std::size_t layer) {
    return std::pair(0.5 + 0.1 * static_cast<double>(layer), layer % 2 == 0 ? 2.0 : 0.0);
  };
  const Rates same = [](std::size_t) { return std::pair(1.0, 1.0); };
  const double one = expected_factor(free, kKappa, kLr, same);
  for (const Rates& rates : std::vector<Rates>{only_first(0), only_first(1e-5), only_others(0),
                                               only_others(1e-5), apart}) {
    const double nu = expected_factor(free, kKappa, kLr, rates);
    ASSERT_LT(nu, 1);
    EXPECT_GT(std::abs(nu - one), 1e-3);  // Control: one rate for all gives another factor.
    for (const int ranks : {1, 3})
      comm::run_ranks(ranks, [&](auto comm) {
        // Sums of at most 1e3 products and a rounded statistic per rank.
        const double tolerance = 1e4 * eps<double> * nu;
        EXPECT_NEAR(one_step(comm, kKappa, kLr, rates).factor, nu, tolerance);
        EXPECT_NEAR(optimizer_factor(comm, kKappa, kLr, rates), nu, tolerance);
      });
  }
  EXPECT_EQ(optimizer_factor(comm::make_self(), kKappa, kLr,
                             [](std::size_t) { return std::pair(0.0, 0.0); }),
            1);
}

TEST(KlClip, RefusesRatesThatAreNone) {
  kfac::Preconditioner preconditioner(comm::make_self(), curvature(1e-3));
  const LayerId fc = preconditioner.add_layer("fc", LinearSpec{.in = 2, .out = 2});
  EXPECT_THROW(preconditioner.set_rates(fc, -1, 1), InvalidArgument);
  EXPECT_THROW(preconditioner.set_rates(fc, 1, std::nan("")), InvalidArgument);
  EXPECT_THROW(preconditioner.set_rates(static_cast<LayerId>(1), 1, 1), InvalidArgument);
  preconditioner.set_rates(fc, 0, 2);
}

TEST(KlClip, LeavesShortStepsAlone) {
  const OneStep free = one_step(comm::make_self(), 0, 0.3);
  const OneStep loose = one_step(comm::make_self(), 1e6, 0.3);
  EXPECT_EQ(loose.factor, 1);
  EXPECT_EQ(loose.directions, free.directions);
}

TEST(KlClip, NeedsALearningRate) {
  EXPECT_THROW((void)one_step(comm::make_self(), 1e-3, 0), InvalidArgument);
}

TEST(KlClip, OfTheOptimizerComesBeforeDecayAndMomentum) {
  // Without momentum and decay the first step is lr nu U; its length in the metric is kappa.
  const auto moved = [](double kappa, double decay) {
    optim::KfacOptions options{.curvature = curvature(kappa), .momentum = 0, .weight_decay = decay};
    double factor = 0;
    const auto net = train<double>(
        comm::make_self(), [&](auto comm) { return optim::make_kfac(comm, options); }, {.steps = 1},
        [&](const kfac::StepReport& report) { factor = report.kl_factor; });
    return std::pair(net.parameters(), factor);
  };
  const std::vector<double> start = PlainNet<double>(3).parameters();
  const auto [free, one] = moved(0, 0);
  const auto [clipped, nu] = moved(1e-5, 0);
  const auto [decayed, same] = moved(1e-5, 0.1);
  EXPECT_EQ(one, 1);
  EXPECT_LT(nu, 0.9);
  EXPECT_EQ(nu, same);  // The decay is no part of <U, V>, and is not scaled:
  EXPECT_FALSE(near(decayed, clipped, 1e-6));
  const TrainSettings settings;
  const double lr = settings.lr(0);
  PlainNet<double> net(3);  // For the gradients V of the step.
  (void)net.forward(plain_batch<double>(0, 0, settings.global_batch));
  net.backward(backward_factor(settings, 1));
  // Layers without curvature keep their gradient, so compare where the step was scaled.
  double sum = 0, terms = 0;
  std::size_t at = 0;
  for (const auto& l : net.layers) {
    std::vector<double> v = l.dw;
    v.insert(v.end(), l.db.begin(), l.db.end());
    for (std::size_t i = 0; i < v.size(); ++i, ++at) {
      if (std::holds_alternative<PlainSpec>(l.spec)) continue;
      EXPECT_NEAR(clipped[at] - start[at], nu * (free[at] - start[at]), 1e-12);
      sum += (start[at] - free[at]) / lr * v[i];
      ++terms;
    }
  }
  const double expected = std::sqrt(1e-5 / (lr * lr * sum));
  // Of weights up to 1e4 times longer than their steps, differences lose as much.
  EXPECT_NEAR(nu, expected, 1e4 * terms * eps<double> * expected);
}

}  // namespace
}  // namespace dkfac::testing
