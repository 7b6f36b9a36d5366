#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "dkfac/comm/in_process.h"
#include "dkfac/core/ops.h"
#include "dkfac/core/tensor.h"
#include "dkfac/kfac/preconditioner.h"

#include "support/natural_gradient.h"
#include "support/near.h"
#include "support/one_layer.h"

// Multipliers of learning rate and weight decay per parameter, and layers with a bias alone.
namespace dkfac::testing {
namespace {

// 20 steps in f64: about 20 * 10 roundings, far below this.
constexpr double kTolerance = 1e-12, kMomentum = 0.9, kDecay = 0.03;

TensorView view(std::vector<double>& v) {
  return view_of(v.data(), {static_cast<std::int64_t>(v.size())});
}

/// The multipliers of one layer, weight decay included.
struct Multipliers {
  double weight_lr = 1, bias_lr = 1, bias_decay = 0;
};
constexpr Multipliers kSome{.weight_lr = 0.5, .bias_lr = 3, .bias_decay = 0.25};

struct State {
  std::vector<double> weight{0.5, -1, 2}, bias{0.1, -0.2};
};

/// 20 steps over one layer; without `weight` over its bias alone.
State run(optim::Optimizer& optimizer, Multipliers m, bool weight = true) {
  State s, g;
  optim::LayerParams params{
      .weight_lr = m.weight_lr, .bias_lr = m.bias_lr, .bias_decay = m.bias_decay};
  if (weight) params.weight = view(s.weight), params.weight_grad = view(g.weight);
  params.bias = view(s.bias), params.bias_grad = view(g.bias);
  const auto id = optimizer.add_layer("a", PlainSpec{.weight = weight ? 3 : 0, .bias = 2}, params);
  optimizer.prepare();
  for (int step = 0; step < 20; ++step) {
    for (std::size_t i = 0; i < 3; ++i) g.weight[i] = made_up_gradient(step, i);
    for (std::size_t i = 0; i < 2; ++i) g.bias[i] = made_up_gradient(step, 3 + i);
    optimizer.grads_ready(id, Stream::cpu(), {});
    (void)optimizer.step({.lr = falling_lr(step), .flags = {}}, Stream::cpu());
  }
  return s;
}

/// What an optimizer does beside v <- m v - lr (g + wd w), w <- w + v.
struct Rule {
  const char* name;
  std::function<std::unique_ptr<optim::Optimizer>(std::shared_ptr<comm::Communicator>)> make;
  std::function<double(double lr, double last)> momentum;  ///< Of the unmultiplied rates.
  bool nesterov = false, trust = false;
};

double norm(const std::vector<double>& x) {
  double sum = 0;
  for (const double e : x) sum += e * e;
  return std::sqrt(sum);
}

State by_hand(const Rule& rule, Multipliers mul) {
  State s;
  std::vector<double> weight_buffer(3), bias_buffer(2);
  for (int step = 0; step < 20; ++step) {
    const double lr = falling_lr(step), last = step == 0 ? lr : falling_lr(step - 1);
    const double m = rule.momentum(lr, last);
    const auto update = [&](auto& w, auto& v, std::size_t first, double rate, double wd) {
      for (std::size_t i = 0; i < w.size(); ++i) {
        const double g = rate * (made_up_gradient(step, first + i) + wd * w[i]);
        v[i] = m * v[i] - g;
        w[i] += rule.nesterov ? kMomentum * v[i] - g : v[i];
      }
    };
    std::vector<double> g(3);
    for (std::size_t i = 0; i < 3; ++i) g[i] = made_up_gradient(step, i);
    const double trust =
        rule.trust ? 0.2 * norm(s.weight) / (norm(g) + kDecay * norm(s.weight)) : 1;
    update(s.weight, weight_buffer, 0, lr * mul.weight_lr * trust, kDecay);
    update(s.bias, bias_buffer, 3, lr * mul.bias_lr, kDecay * mul.bias_decay);
  }
  return s;
}

std::vector<Rule> rules() {
  const auto sgd = [](bool nesterov, bool correction) {
    return [=](auto comm) {
      return optim::make_sgd(comm, {.momentum = kMomentum,
                                    .nesterov = nesterov,
                                    .weight_decay = kDecay,
                                    .momentum_correction = correction});
    };
  };
  const auto kfac = [](optim::MomentumRule momentum) {
    return [=](auto comm) {
      optim::KfacOptions options{.curvature = natural_gradient()};
      options.momentum = kMomentum;
      options.momentum_rule = momentum;
      options.initial_lr = 0.2;
      options.weight_decay = kDecay;
      return optim::make_kfac(comm, options);
    };
  };
  const auto lars = [](auto comm) {
    return optim::make_lars(comm, {.momentum = kMomentum, .weight_decay = kDecay, .eta = 0.2});
  };
  using optim::MomentumRule;
  const auto fixed = [](double, double) { return kMomentum; };
  const auto scaled = [](double lr, double last) { return kMomentum * lr / last; };
  const auto falling = [](double lr, double last) { return kMomentum * std::min(1.0, lr / last); };
  const auto paper = [](double lr, double) { return kMomentum * lr / 0.2; };
  return {{"sgd", sgd(false, true), scaled},
          {"sgd, Nesterov", sgd(true, true), scaled, true},
          {"sgd, uncorrected", sgd(false, false), fixed},
          {"lars", lars, fixed, false, true},
          {"kfac, constant", kfac(MomentumRule::constant), fixed},
          {"kfac, corrected", kfac(MomentumRule::corrected), falling},
          {"kfac, paper", kfac(MomentumRule::paper), paper}};
}

TEST(Multipliers, ScaleRateAndDecayOfEveryOptimizerAndLeaveMomentumAlone) {
  for (const Rule& rule : rules()) {
    const State expected = by_hand(rule, kSome);
    const State s = run(*rule.make(comm::make_self()), kSome);
    EXPECT_TRUE(near(s.weight, expected.weight, kTolerance)) << rule.name;
    EXPECT_TRUE(near(s.bias, expected.bias, kTolerance)) << rule.name;
    // Controls: each of the three shows.
    const State plain = run(*rule.make(comm::make_self()), {});
    EXPECT_FALSE(near(plain.weight, expected.weight, 1e-3)) << rule.name;
    for (const Multipliers& other :
         {Multipliers{.bias_decay = 0.25}, Multipliers{.bias_lr = 3}, Multipliers{}}) {
      const State off = run(*rule.make(comm::make_self()), other);
      EXPECT_FALSE(near(off.bias, expected.bias, 1e-4)) << rule.name;
    }
  }
}

std::unique_ptr<optim::Optimizer> adamw(std::shared_ptr<comm::Communicator> comm) {
  return optim::make_adamw(std::move(comm), {.beta2 = 0.99, .weight_decay = kDecay});
}

std::unique_ptr<optim::Optimizer> kfac_by_adamw(std::shared_ptr<comm::Communicator> comm) {
  return optim::make_kfac(
      std::move(comm),
      {.update = optim::DirectionUpdate::adamw, .beta2 = 0.99, .weight_decay = kDecay});
}

TEST(Multipliers, OfAdamwBehindKfacAreThoseOfAdamwWhereThereIsNoCurvature) {
  for (const Multipliers& m : {kSome, Multipliers{}}) {
    const State expected = run(*adamw(comm::make_self()), m);
    const State s = run(*kfac_by_adamw(comm::make_self()), m);
    EXPECT_EQ(s.weight, expected.weight);
    EXPECT_EQ(s.bias, expected.bias);
  }
  EXPECT_NE(run(*kfac_by_adamw(comm::make_self()), kSome).bias,
            run(*kfac_by_adamw(comm::make_self()), {}).bias);
}

TEST(Multipliers, OfZeroFreezeAParameter) {
  std::vector<Rule> all = rules();
  all.push_back({"adamw", adamw, {}});
  all.push_back({"kfac, adamw", kfac_by_adamw, {}});
  for (const Rule& rule : all) {
    const State s = run(*rule.make(comm::make_self()), {.weight_lr = 0, .bias_lr = 1});
    EXPECT_EQ(s.weight, State{}.weight) << rule.name;
    EXPECT_NE(s.bias, State{}.bias) << rule.name;
  }
}

TEST(Multipliers, OfZeroFreezeAWeightThatWouldBeRescaled) {
  for (const double lr : {0.0, 1.0}) {
    std::vector<double> weight{3, 4}, grad{0.5, -1};
    optim::KfacOptions options{.curvature = natural_gradient()};
    options.curvature.dtype = DType::f64;
    options.rescale = optim::Rescale::always;
    const auto optimizer = optim::make_kfac(comm::make_self(), options);
    const auto id =
        optimizer->add_layer("fc", LinearSpec{.in = 2, .out = 1, .bias = false},
                             {.weight = view(weight), .weight_grad = view(grad), .weight_lr = lr});
    optimizer->prepare();
    const double x[] = {1, 2, -1, 3}, dy[] = {0.5, -0.25};
    optimizer->record_input(id, view_of(x, {2, 2}), Stream::cpu(), {});
    optimizer->record_grad_output(id, view_of(dy, {2, 1}), Stream::cpu(), {});
    optimizer->grads_ready(id, Stream::cpu(), {});
    (void)optimizer->step({.lr = 0.1, .flags = {}}, Stream::cpu());
    EXPECT_EQ(weight == (std::vector<double>{3, 4}), lr == 0);
    // Control: rescaling shows. 1e-9 is added to the norm that it divides by.
    EXPECT_NEAR(norm(weight), lr == 0 ? 5 : std::sqrt(2.0), 1e-8);
  }
}

TEST(Multipliers, AreThoseOfABiasWithoutAWeightToo) {
  for (const Rule& rule : rules()) {
    const State s = run(*rule.make(comm::make_self()), kSome, false);
    EXPECT_TRUE(near(s.bias, by_hand(rule, kSome).bias, kTolerance)) << rule.name;
    EXPECT_EQ(s.weight, State{}.weight);
  }
}

TEST(Multipliers, GammaNeverDecaysAndBetaDoesAsItsMultiplierSays) {
  std::vector<double> gamma{2}, beta{2}, gamma_grad{0}, beta_grad{0};
  const auto optimizer = optim::make_sgd(comm::make_self(), {.weight_decay = 0.1});
  const auto id = optimizer->add_layer("bn", NormSpec{.channels = 1},
                                       {.weight = view(gamma),
                                        .bias = view(beta),
                                        .weight_grad = view(gamma_grad),
                                        .bias_grad = view(beta_grad),
                                        .bias_decay = 0.5});
  optimizer->prepare();
  optimizer->grads_ready(id, Stream::cpu(), {});
  (void)optimizer->step({.lr = 0.2, .flags = {}}, Stream::cpu());
  EXPECT_EQ(gamma[0], 2);
  EXPECT_NEAR(beta[0], 2 - 0.2 * (0.5 * 0.1) * 2, 1e-15);
}

TEST(Multipliers, MustBeFiniteAndNotNegative) {
  for (const double bad : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()})
    for (const Multipliers m : {Multipliers{.weight_lr = bad}, Multipliers{.bias_lr = bad},
                                Multipliers{.bias_decay = bad}})
      EXPECT_THROW(run(*optim::make_sgd(comm::make_self(), {}), m), InvalidArgument);
}

TEST(Multipliers, ThatDifferOverRanksAreAnError) {
  for (const Multipliers other : {Multipliers{.weight_lr = 1 + 1e-15}, Multipliers{.bias_lr = 2},
                                  Multipliers{.bias_decay = 1}})
    comm::run_ranks(2, [&](auto comm) {
      const auto optimizer = optim::make_sgd(comm, {});
      EXPECT_THROW(run(*optimizer, comm->rank() == 1 ? other : Multipliers{}), InvalidArgument);
    });
}

/// One K-FAC step over a BatchNorm of one channel with a fixed gamma; beta starts at 0.
double beta_after_a_step(DType parameters, kfac::NormFisher mode, DType curvature) {
  optim::KfacOptions options{.curvature = natural_gradient()};
  options.curvature.dtype = curvature;
  options.curvature.statistics.norm_fisher = mode;
  options.curvature.damping = 0.1;
  options.curvature.norm_damping = 2;
  const auto optimizer = optim::make_kfac(comm::make_self(), options);
  Context ctx;
  Tensor beta = Tensor::zeros(ctx, {1}, parameters), grad = Tensor::zeros(ctx, {1}, parameters);
  ops::fill(ctx, grad, 6);
  const auto id = optimizer->add_layer("bn", NormSpec{.channels = 1, .scale = false},
                                       {.bias = beta, .bias_grad = grad, .bias_lr = 0.5});
  optimizer->prepare();
  EXPECT_NE(optimizer->describe().find("shift only"), std::string::npos);
  const double x[] = {1, 2, 3}, dy[] = {0.5, -1, 2}, mean = 2, inv_std = 1;
  optimizer->record_normalization(id, view_of(x, {3, 1}), view_of(&mean, {1}),
                                  view_of(&inv_std, {1}), view_of(dy, {3, 1}), Stream::cpu(), {});
  optimizer->grads_ready(id, Stream::cpu(), {});
  (void)optimizer->step({.lr = 0.2, .flags = {}}, Stream::cpu());
  Tensor wide = Tensor::zeros(ctx, {1}, DType::f64);
  ops::cast(ctx, beta, wide);
  return *wide.data<double>();
}

TEST(ShiftOnlyBatchNorm, IsPreconditionedByItsOwnFisher) {
  // Gradients of the mean of 3 losses are a third of those of a sample: F = sum (3 dy)^2 / 3.
  const double fisher = 9 * (0.25 + 1 + 4) / 3, shift = 2 * 0.1;
  const double expected = -0.2 * 0.5 * 6 / (fisher + shift);
  for (const auto mode : {kfac::NormFisher::diagonal, kfac::NormFisher::unit_wise}) {
    EXPECT_NEAR(beta_after_a_step(DType::f64, mode, DType::f64), expected, 1e-14);
    // Ten roundings to f32 of a number below 1.
    EXPECT_NEAR(beta_after_a_step(DType::f32, mode, DType::f64), expected, 10 * eps<float>);
    EXPECT_NEAR(beta_after_a_step(DType::f64, mode, DType::f32), expected, 10 * eps<float>);
  }
}

TEST(ShiftOnlyBatchNorm, PassesThroughThePreconditionerToo) {
  kfac::CurvatureOptions options = natural_gradient();
  options.dtype = DType::f64;
  options.damping = 0.1;
  kfac::Preconditioner preconditioner(comm::make_self(), options);
  const auto bn = preconditioner.add_layer("bn", NormSpec{.channels = 1, .scale = false});
  const double x[] = {1, 2, 3}, dy[] = {0.5, -1, 2}, mean = 2, inv_std = 1;
  double gradient = 6;
  preconditioner.record_normalization(bn, view_of(x, {3, 1}), view_of(&mean, {1}),
                                      view_of(&inv_std, {1}), view_of(dy, {3, 1}));
  const std::vector<kfac::LayerGrad> grads{{bn, {}, view_of(&gradient, {1})}};
  (void)preconditioner.step(grads);
  EXPECT_NEAR(gradient, 6 / (9 * (0.25 + 1 + 4) / 3 + 0.1), 1e-14);
  const std::vector<kfac::LayerGrad> wrong{{bn, view_of(&gradient, {1}), view_of(&gradient, {1})}};
  EXPECT_THROW((void)preconditioner.step(wrong), InvalidArgument);
}

}  // namespace
}  // namespace dkfac::testing
