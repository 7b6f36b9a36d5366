#include <cmath>
#include <cstring>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"
#include "dkfac/core/ops.h"

#include "support/natural_gradient.h"
#include "support/near.h"
#include "support/one_layer.h"
#include "support/plain_training.h"
#include "support/saved_state.h"

// K-FAC whose directions AdamW applies, against the directions of a Preconditioner and an AdamW of
// its own.
namespace dkfac::testing {
namespace {

using optim::DirectionUpdate;

optim::KfacOptions by_adamw() {
  optim::KfacOptions options{.curvature = natural_gradient()};
  options.curvature.damping = 1e-2;
  options.curvature.dtype = DType::f64;
  options.curvature.refresh.inverse_interval = 3;
  options.update = DirectionUpdate::adamw;
  options.beta2 = 0.99;
  options.epsilon = 1e-4;
  options.weight_decay = 0.02;
  return options;
}

optim::KfacOptions by_momentum() {
  optim::KfacOptions options = by_adamw();
  const optim::KfacOptions unset{.curvature = natural_gradient()};
  options.update = DirectionUpdate::momentum;
  options.beta2 = unset.beta2;
  options.epsilon = unset.epsilon;
  return options;
}

optim::AdamwOptions adamw_of(const optim::KfacOptions& o) {
  return {.beta1 = o.beta1, .beta2 = o.beta2, .epsilon = o.epsilon, .weight_decay = o.weight_decay};
}

MakeOptimizer kfac_of(const optim::KfacOptions& options) {
  return [options](auto comm) { return optim::make_kfac(comm, options); };
}

/// An AdamW on every rank, which reduces nothing: directions are equal on all of them.
MakeUpdate<double> adamw_alone(const optim::AdamwOptions& options) {
  return [options](PlainNet<double>& net) -> std::function<void(double)> {
    std::shared_ptr<optim::Optimizer> adamw = optim::make_adamw(comm::make_self(), options);
    const std::vector<LayerId> ids = register_layers(*adamw, net);
    adamw->prepare();
    return [adamw, ids](double lr) {
      adamw->all_grads_ready(ids);
      EXPECT_TRUE(adamw->step({.lr = lr}).updated);
    };
  };
}

std::vector<double> composed(int ranks, const optim::KfacOptions& options) {
  std::vector<double> parameters;
  comm::run_ranks(ranks, [&](std::shared_ptr<comm::Communicator> comm) {
    const auto net = train_preconditioned<double>(comm, options.curvature, {}, {},
                                                  adamw_alone(adamw_of(options)));
    if (comm->rank() == 0) parameters = net.parameters();
  });
  return parameters;
}

TEST(KfacByAdamw, HasTheBitsOfAPreconditionerBeforeAdamw) {
  for (const double fraction : {0.0, 1.0})
    for (const int ranks : {1, 2, 4}) {  // By powers of two, means of gradients are exact.
      optim::KfacOptions options = by_adamw();
      options.curvature.distribution.grad_worker_fraction = fraction;
      EXPECT_EQ(train_ranks<double>(ranks, kfac_of(options)), composed(ranks, options))
          << ranks << ' ' << fraction;
    }
}

TEST(KfacByAdamw, IsNeitherMomentumNorAdamwAlone) {
  const std::vector<double> here = train_ranks<double>(1, kfac_of(by_adamw()));
  EXPECT_FALSE(near(train_ranks<double>(1, kfac_of(by_momentum())), here, 1e-2));
  const MakeOptimizer adamw = [](auto comm) {
    return optim::make_adamw(comm, adamw_of(by_adamw()));
  };
  EXPECT_FALSE(near(train_ranks<double>(1, adamw), here, 1e-2));
}

TEST(KfacByAdamw, HasTheSameWeightsOnAnyNumberOfRanks) {
  const std::vector<double> one = train_ranks<double>(1, kfac_of(by_adamw()));
  // As in the invariance tests: the order of sums differs, and 12 steps amplify that little. The
  // epsilon is far above the roundings of directions that are 0.
  for (const int ranks : {2, 3, 4})
    EXPECT_TRUE(near(train_ranks<double>(ranks, kfac_of(by_adamw())), one, 1e-10)) << ranks;
}

TEST(KfacByAdamw, TurnsGraduallyFromTheGradient) {
  const auto with = [](optim::KfacOptions options, kfac::StepLength rule) {
    options.curvature.step_length = rule;
    return train_ranks<double>(1, kfac_of(options));
  };
  using kfac::StepLength;
  const std::vector<double> gradual = with(by_adamw(), StepLength::gradual);
  EXPECT_EQ(with(by_adamw(), StepLength::automatic), gradual);
  EXPECT_FALSE(near(with(by_adamw(), StepLength::gradient), gradual, 1e-6));
  EXPECT_EQ(with(by_momentum(), StepLength::automatic), with(by_momentum(), StepLength::gradient));
}

constexpr std::int64_t kSamples = 4, kInputs = 3, kOutputs = 2;

/// One layer on one rank, with an optimizer or a Preconditioner before AdamW.
class OneLayer {
 public:
  explicit OneLayer(const optim::KfacOptions& options)
      : optimizer_(optim::make_kfac(comm::make_self(), options)) {
    add();
  }
  OneLayer(const kfac::CurvatureOptions& curvature, const optim::AdamwOptions& options)
      : optimizer_(optim::make_adamw(comm::make_self(), options)),
        preconditioner_(std::in_place, comm::make_self(), curvature) {
    add();
    (void)preconditioner_->add_layer("fc", spec());
  }
  /// reject: the gradient has a NaN.
  kfac::StepReport step(int step, std::optional<double> momentum = {}, bool reject = false) {
    std::vector<double> x(kSamples * kInputs), dy(kSamples * kOutputs);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = made_up_gradient(step, 20 + i);
    for (std::size_t i = 0; i < dy.size(); ++i) dy[i] = made_up_gradient(step, 40 + i);
    for (std::size_t i = 0; i < dw_.size(); ++i) dw_[i] = made_up_gradient(step, i);
    if (reject) dw_[1] = std::nan("");
    const TensorView in = view_of(x.data(), {kSamples, kInputs}),
                     out = view_of(dy.data(), {kSamples, kOutputs});
    if (preconditioner_) {
      if (preconditioner_->wants_statistics()) {
        preconditioner_->record_input(id_, in);
        preconditioner_->record_grad_output(id_, out);
      }
      const std::vector<kfac::LayerGrad> grads{{id_, view_of(dw_.data(), {kOutputs, kInputs}), {}}};
      (void)preconditioner_->step(grads);
    } else if (optimizer_->wants_statistics()) {
      optimizer_->record_input(id_, in);
      optimizer_->record_grad_output(id_, out);
    }
    optimizer_->grads_ready(id_);
    return optimizer_->step({.lr = falling_lr(step), .flags = {}, .momentum = momentum});
  }
  [[nodiscard]] const std::vector<double>& weights() const { return w_; }
  [[nodiscard]] SavedState state() {
    Saver saver;
    optimizer_->visit_state(saver);
    return saver.state;
  }

 private:
  static LinearSpec spec() { return {.in = kInputs, .out = kOutputs, .bias = false}; }
  void add() {
    id_ = optimizer_->add_layer("fc", spec(),
                                {.weight = view_of(w_.data(), {kOutputs, kInputs}),
                                 .weight_grad = view_of(dw_.data(), {kOutputs, kInputs})});
    optimizer_->prepare();
  }
  std::vector<double> w_{0.5, -1, 2, 0.25, 1.5, -0.75},
      dw_ = std::vector<double>(kInputs * kOutputs);
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::optional<kfac::Preconditioner> preconditioner_;
  LayerId id_{};
};

TEST(KfacByAdamw, TakesAMomentumForEachStepAsBeta1) {
  const optim::KfacOptions options = by_adamw();
  OneLayer here(options), there(options.curvature, adamw_of(options)), constant(options);
  for (int step = 0; step < 20; ++step) {
    const double beta1 = 0.5 + 0.1 * (step % 4);
    EXPECT_EQ(here.step(step, beta1).momentum, beta1);
    (void)there.step(step, beta1);
    EXPECT_EQ(constant.step(step).momentum, 0.9);
  }
  EXPECT_EQ(here.weights(), there.weights());
  EXPECT_FALSE(near(constant.weights(), here.weights(), 1e-3));
}

TEST(KfacByAdamw, ASkippedStepIsNone) {
  OneLayer with(by_adamw()), without(by_adamw());
  for (int step = 0; step < 8; ++step) {
    if (step == 3) {
      const std::vector<double> before = with.weights();
      EXPECT_FALSE(with.step(17, {}, true).updated);
      EXPECT_EQ(with.weights(), before);
    }
    EXPECT_TRUE(with.step(step).updated);
    EXPECT_TRUE(without.step(step).updated);
  }
  EXPECT_EQ(with.weights(), without.weights());
}

TEST(KfacByAdamw, KeepsMomentsByTheNamesOfAdamwsAndNoVelocity) {
  OneLayer adamw(by_adamw()), momentum(by_momentum());
  const SavedState moments = adamw.state(), velocity = momentum.state();
  for (const char* name : {"fc.first_moment", "fc.second_moment", "beta1_power", "beta2_power"}) {
    EXPECT_TRUE(moments.contains(name)) << name;
    EXPECT_FALSE(velocity.contains(name)) << name;
  }
  for (const char* name : {"fc.velocity", "last_lr"}) {
    EXPECT_FALSE(moments.contains(name)) << name;
    EXPECT_TRUE(velocity.contains(name)) << name;
  }
}

/// Rounded to nearest, as ops::cast does.
std::vector<double> on_wire(const std::vector<double>& x, DType wire) {
  Context ctx;
  std::vector<double> back(x.size());
  const std::int64_t n = std::ssize(x);
  Tensor narrow = Tensor::empty(ctx, {n}, wire);
  ops::cast(ctx, view_of(x.data(), {n}), narrow);
  ops::cast(ctx, narrow, view_of(back.data(), {n}));
  return back;
}

TEST(KfacByAdamw, UpdatesMastersAndPublishesThemOnTheWire) {
  for (const DType wire : {DType::bf16, DType::f16}) {
    optim::KfacOptions options = by_adamw();
    OneLayer exact(options);
    options.curvature.communication.weight_wire = wire;
    OneLayer rounded(options);
    for (int step = 0; step < 6; ++step) {  // Gradients do not depend on the weights here.
      (void)exact.step(step);
      (void)rounded.step(step);
      EXPECT_EQ(rounded.weights(), on_wire(exact.weights(), wire)) << step;
    }
    EXPECT_NE(rounded.weights(), exact.weights());
    const std::string master = rounded.state().at("fc.master").bytes;
    ASSERT_EQ(master.size(), exact.weights().size() * sizeof(double));
    EXPECT_EQ(std::memcmp(master.data(), exact.weights().data(), master.size()), 0);
  }
}

TEST(KfacByAdamw, RefusesOptionsOfTheOtherUpdateAndOutOfRange) {
  const auto refused = [](const optim::KfacOptions& options) -> std::string {
    try {
      options.validate();
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "";
  };
  const auto changed = [](optim::KfacOptions options, auto change) {
    change(options);
    return options;
  };
  using Options = optim::KfacOptions;
  EXPECT_EQ(refused(by_adamw()), "");
  EXPECT_EQ(refused(by_momentum()), "");
  EXPECT_EQ(
      refused(changed(by_adamw(), [](Options& o) { o.momentum = 0.8; })),
      "[kfac options] momentum is set, and update is adamw, which has no use for it; leave it "
      "out");
  const std::pair<const char*, std::function<void(Options&)>> of_momentum[] = {
      {"momentum_rule", [](Options& o) { o.momentum_rule = optim::MomentumRule::constant; }},
      {"initial_lr", [](Options& o) { o.initial_lr = 0.1; }},
      {"rescale", [](Options& o) { o.rescale = optim::Rescale::always; }},
      {"kl_clip", [](Options& o) { o.curvature.kl_clip = 1e-3; }}};
  for (const auto& [name, set] : of_momentum) {
    EXPECT_NE(refused(changed(by_adamw(), set)).find(name), std::string::npos) << name;
    EXPECT_EQ(refused(changed(by_momentum(), set)), "") << name;
  }
  const std::pair<const char*, std::function<void(Options&)>> of_adamw[] = {
      {"beta1", [](Options& o) { o.beta1 = 0.8; }},
      {"beta2", [](Options& o) { o.beta2 = 0.95; }},
      {"epsilon", [](Options& o) { o.epsilon = 1e-3; }}};
  for (const auto& [name, set] : of_adamw) {
    EXPECT_NE(refused(changed(by_momentum(), set)).find(name), std::string::npos) << name;
    EXPECT_EQ(refused(changed(by_adamw(), set)), "") << name;
  }
  for (const double wrong : {-0.1, 1.0, std::nan("")}) {
    EXPECT_NE(refused(changed(by_adamw(), [=](Options& o) { o.beta1 = wrong; })), "");
    EXPECT_NE(refused(changed(by_adamw(), [=](Options& o) { o.beta2 = wrong; })), "");
  }
  EXPECT_NE(refused(changed(by_adamw(), [](Options& o) { o.epsilon = 0; })), "");
}

}  // namespace
}  // namespace dkfac::testing
