#include <gtest/gtest.h>

#include "support/near.h"
#include "support/one_layer.h"
#include "support/saved_state.h"

namespace dkfac::testing {
namespace {

// 20 steps in f64: about 20 * 10 roundings, far below this.
constexpr double kSgdTolerance = 1e-12;

std::vector<double> run_sgd(optim::SgdOptions options) {
  return flat(run_optimizer(*optim::make_sgd(comm::make_self(), options)));
}

struct Variant {
  bool nesterov, correction;
};
class SgdRule : public ::testing::TestWithParam<Variant> {};

TEST_P(SgdRule, EqualsTheFormulaOverTwentyStepsWithAChangingRate) {
  const auto [nesterov, correction] = GetParam();
  const double m = 0.9, wd = 0.02;
  const auto by_hand =
      run_by_hand([&, nesterov = nesterov, correction = correction](
                      auto& w, const auto& g, auto& v, double lr, double last, bool is_weight) {
        for (std::size_t i = 0; i < w.size(); ++i) {
          const double grad = g[i] + (is_weight ? wd : 0) * w[i];
          const double scale = correction ? lr / last : 1;
          v[i] = m * scale * v[i] + lr * grad;
          w[i] -= nesterov ? lr * grad + m * v[i] : v[i];
        }
      });
  EXPECT_TRUE(near(run_sgd({.momentum = m,
                            .nesterov = nesterov,
                            .weight_decay = wd,
                            .momentum_correction = correction}),
                   flat(by_hand), kSgdTolerance));
}

INSTANTIATE_TEST_SUITE_P(Rules, SgdRule,
                         ::testing::Values(Variant{false, true}, Variant{false, false},
                                           Variant{true, true}, Variant{true, false}),
                         [](const auto& test) {
                           return std::string(test.param.nesterov ? "Nesterov" : "Plain") +
                                  (test.param.correction ? "Corrected" : "Uncorrected");
                         });

TEST(Sgd, WithCorrectionIsTheRuleWithTheRateOutsideTheBuffer) {
  // u <- m u + g; w <- w - lr u, and with Nesterov w <- w - lr (g + m u).
  for (const bool nesterov : {false, true}) {
    const auto by_hand = run_by_hand([&](auto& w, const auto& g, auto& u, double lr, double, bool) {
      for (std::size_t i = 0; i < w.size(); ++i) {
        u[i] = 0.9 * u[i] + g[i];
        w[i] -= lr * (nesterov ? g[i] + 0.9 * u[i] : u[i]);
      }
    });
    EXPECT_TRUE(near(run_sgd({.nesterov = nesterov}), flat(by_hand), kSgdTolerance));
    EXPECT_FALSE(
        near(run_sgd({.nesterov = nesterov, .momentum_correction = false}), flat(by_hand), 1e-3));
  }
}

TEST(Sgd, TakesAMomentumForEachStep) {
  const auto momentum = [](double lr) { return lr < 0.05 ? 0.95 : 0.6; };
  const auto by_hand =
      run_by_hand([&](auto& w, const auto& g, auto& v, double lr, double last, bool) {
        for (std::size_t i = 0; i < w.size(); ++i) {
          v[i] = momentum(lr) * (lr / last) * v[i] + lr * g[i];
          w[i] -= lr * g[i] + momentum(lr) * v[i];
        }
      });
  const auto optimizer = optim::make_sgd(comm::make_self(), {.nesterov = true});
  EXPECT_TRUE(near(flat(run_optimizer(*optimizer, falling_lr, 20, momentum)), flat(by_hand),
                   kSgdTolerance));
  EXPECT_FALSE(near(run_sgd({.nesterov = true}), flat(by_hand), 1e-3));  // Control: the option's.
}

/// One weight with an optimizer of its own.
struct SgdWeight {
  explicit SgdWeight(const optim::SgdOptions& options)
      : optimizer(optim::make_sgd(comm::make_self(), options)),
        id(optimizer->add_layer("w", PlainSpec{.weight = 1},
                                {view_of(&w, {1}), {}, view_of(&g, {1}), {}})) {
    optimizer->prepare();
  }
  /// The momentum that a step reports.
  double step(double lr, std::optional<double> momentum = {}) {
    optimizer->grads_ready(id, Stream::cpu(), {});
    return optimizer->step({.lr = lr, .flags = {}, .momentum = momentum}, Stream::cpu()).momentum;
  }
  double w = 1, g = 0.5;
  std::unique_ptr<optim::Optimizer> optimizer;
  LayerId id;
};

TEST(Sgd, ReportsTheMomentumOfEachStep) {
  SgdWeight corrected({}), plain({.momentum_correction = false}), resumed({});
  for (SgdWeight* one : {&corrected, &plain}) EXPECT_EQ(one->step(0.1), 0.9);
  Saver saver;
  corrected.optimizer->visit_state(saver);
  const std::vector<SavedState> states{saver.state};
  Loader loader(states, 0);
  resumed.optimizer->visit_state(loader);
  // c = 4 roundings. The buffer contains the rate of the step before.
  EXPECT_NEAR(corrected.step(0.04), 0.9 * 0.4, 4 * eps<double>);
  EXPECT_NEAR(resumed.step(0.04), 0.9 * 0.4, 4 * eps<double>);
  EXPECT_EQ(plain.step(0.04), 0.9);
  EXPECT_NEAR(corrected.step(0.02, 0.6), 0.6 * 0.5, 4 * eps<double>);
}

TEST(Sgd, RefusesAMomentumOutOfRange) {
  const auto with = [](double momentum) {
    const auto optimizer = optim::make_sgd(comm::make_self(), {});
    (void)run_optimizer(*optimizer, falling_lr, 1, [=](double) { return momentum; });
  };
  EXPECT_NO_THROW(with(0));
  for (const double wrong : {1.0, -0.1, std::nan("")}) EXPECT_THROW(with(wrong), InvalidArgument);
}

TEST(Sgd, SurvivesARateOfZero) {
  const auto lr = [](int step) { return step == 3 ? 0.0 : 0.1; };
  const auto optimizer = optim::make_sgd(comm::make_self(), {});
  for (const double w : flat(run_optimizer(*optimizer, lr))) EXPECT_TRUE(std::isfinite(w));
}

TEST(Sgd, RefusesOptionsOutOfRange) {
  const auto make = [](optim::SgdOptions options) {
    (void)optim::make_sgd(comm::make_self(), options);
  };
  EXPECT_THROW(make({.momentum = 1}), InvalidArgument);
  EXPECT_THROW(make({.momentum = -0.1}), InvalidArgument);
  EXPECT_THROW(make({.momentum = std::nan("")}), InvalidArgument);
  EXPECT_THROW(make({.weight_decay = -1}), InvalidArgument);
  EXPECT_THROW(make({.communication = {.bucket_bytes = 0}}), InvalidArgument);
}

TEST(Sgd, RefusesAMisuseOfItsCalls) {
  const auto optimizer = optim::make_sgd(comm::make_self(), {});
  std::vector<double> w(6, 1.0), b(2, 1.0), g(6), h(2);
  std::vector<float> single(6);
  const auto view = [](auto& v) {
    return view_of(v.data(), {static_cast<std::int64_t>(v.size())});
  };
  const LinearSpec spec{.in = 3, .out = 2};
  const optim::LayerParams good{view(w), view(b), view(g), view(h)};
  EXPECT_THROW((void)optimizer->add_layer("a", spec, {view(w), {}, view(g), {}}), InvalidArgument);
  EXPECT_THROW((void)optimizer->add_layer("a", spec, {view(b), view(b), view(g), view(h)}),
               InvalidArgument);
  EXPECT_THROW((void)optimizer->add_layer("a", spec, {view(w), view(b), view(single), view(h)}),
               InvalidArgument);
  const auto id = optimizer->add_layer("a", spec, good);
  EXPECT_THROW((void)optimizer->add_layer("a", spec, good), InvalidArgument);
  EXPECT_THROW(optimizer->grads_ready(id, Stream::cpu(), {}), InvalidArgument);
  EXPECT_THROW((void)optimizer->step({}, Stream::cpu()), InvalidArgument);
  optimizer->prepare();
  EXPECT_THROW(optimizer->prepare(), InvalidArgument);
  EXPECT_THROW((void)optimizer->add_layer("b", spec, good), InvalidArgument);
  EXPECT_THROW((void)optimizer->step({}, Stream::cpu()), InvalidArgument);  // not announced
  optimizer->grads_ready(id, Stream::cpu(), {});
  EXPECT_THROW(optimizer->grads_ready(id, Stream::cpu(), {}), InvalidArgument);
  EXPECT_THROW(optimizer->grads_ready(LayerId{1}, Stream::cpu(), {}), InvalidArgument);
  EXPECT_THROW((void)optimizer->step({.lr = -1, .flags = {}}, Stream::cpu()), InvalidArgument);
  EXPECT_TRUE(optimizer->step({.lr = 0.1, .flags = {}}, Stream::cpu()).updated);
}

TEST(Sgd, NeedsTheGlobalBatchForASummedLoss) {
  const auto optimizer = optim::make_sgd(comm::make_self(), {.loss_reduction = LossReduction::sum});
  double w = 1, g = 8;
  const auto id = optimizer->add_layer("a", PlainSpec{.weight = 1},
                                       {view_of(&w, {1}), {}, view_of(&g, {1}), {}});
  optimizer->prepare();
  EXPECT_THROW(optimizer->grads_ready(id, Stream::cpu(), {}), InvalidArgument);
  optimizer->grads_ready(id, Stream::cpu(), {.loss_scale = 2, .global_batch = 4});
  (void)optimizer->step({.lr = 0.5, .flags = {}}, Stream::cpu());
  EXPECT_EQ(w, 1 - 0.5 * 8 / (2 * 4));
}

}  // namespace
}  // namespace dkfac::testing
