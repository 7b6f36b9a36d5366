#include <cmath>
#include <map>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"

#include "support/near.h"
#include "support/one_layer.h"
#include "support/saved_state.h"

namespace dkfac::testing {
namespace {

// 20 steps in f64 of about 20 roundings each, far below this.
constexpr double kAdamwTolerance = 1e-12;

/// Distinguishes the correct result from a nearly correct one.
struct Wrong {
  bool uncorrected = false, coupled_decay = false, decays_biases = false;
};

/// The formula of AdamwOptions, with powers of the betas.
HandState adamw_by_hand(const optim::AdamwOptions& o, Wrong wrong = {}) {
  struct Moments {
    std::vector<double> first, second;
    int t = 0;
  };
  std::map<const void*, Moments> all;
  return run_by_hand([&](auto& w, const auto& given, auto&, double lr, double, bool is_weight) {
    Moments& m = all[&w];
    m.first.resize(w.size());
    m.second.resize(w.size());
    ++m.t;
    const double decay = is_weight || wrong.decays_biases ? o.weight_decay : 0;
    for (std::size_t i = 0; i < w.size(); ++i) {
      const double g = given[i] + (wrong.coupled_decay ? decay * w[i] : 0);
      m.first[i] = o.beta1 * m.first[i] + (1 - o.beta1) * g;
      m.second[i] = o.beta2 * m.second[i] + (1 - o.beta2) * g * g;
      const double first = m.first[i] / (wrong.uncorrected ? 1 : 1 - std::pow(o.beta1, m.t));
      const double second = m.second[i] / (wrong.uncorrected ? 1 : 1 - std::pow(o.beta2, m.t));
      if (!wrong.coupled_decay) w[i] -= lr * decay * w[i];
      w[i] -= lr * first / (std::sqrt(second) + o.epsilon);
    }
  });
}

std::vector<double> run_adamw(const optim::AdamwOptions& options) {
  return flat(run_optimizer(*optim::make_adamw(comm::make_self(), options)));
}

TEST(Adamw, EqualsTheFormulaOverTwentyStepsWithAChangingRate) {
  for (const double beta2 : {0.999, 0.9}) {
    const optim::AdamwOptions options{.beta2 = beta2, .epsilon = 1e-3, .weight_decay = 0.3};
    const std::vector<double> here = run_adamw(options);
    EXPECT_TRUE(near(here, flat(adamw_by_hand(options)), kAdamwTolerance));
    for (const Wrong wrong :
         {Wrong{.uncorrected = true}, Wrong{.coupled_decay = true}, Wrong{.decays_biases = true}})
      EXPECT_FALSE(near(here, flat(adamw_by_hand(options, wrong)), 1e-3));
  }
}

/// One weight in f64, with an optimizer of its own.
class OneWeight {
 public:
  explicit OneWeight(const optim::AdamwOptions& options, double weight_lr = 1)
      : optimizer_(optim::make_adamw(comm::make_self(), options)) {
    id_ = optimizer_->add_layer(
        "fc", LinearSpec{.in = 1, .out = 1, .bias = false},
        {.weight = view_of(&w, {1}), .weight_grad = view_of(&g_, {1}), .weight_lr = weight_lr});
    optimizer_->prepare();
  }
  kfac::StepReport step(double gradient, std::optional<double> momentum = {}) {
    g_ = gradient;
    optimizer_->grads_ready(id_, Stream::cpu(), {});
    return optimizer_->step({.lr = 0.1, .flags = {}, .momentum = momentum}, Stream::cpu());
  }
  [[nodiscard]] optim::Optimizer& optimizer() { return *optimizer_; }
  double w = 1;

 private:
  double g_ = 0;
  std::unique_ptr<optim::Optimizer> optimizer_;
  LayerId id_{};
};

TEST(Adamw, ASkippedStepIsNone) {
  OneWeight with({}), without({});
  (void)with.step(0.5);
  (void)without.step(0.5);
  const double before = with.w;
  EXPECT_FALSE(with.step(std::nan("")).updated);
  EXPECT_EQ(with.w, before);
  (void)with.step(0.25);
  (void)without.step(0.25);
  EXPECT_EQ(with.w, without.w);
}

TEST(Adamw, TheFirstUpdateIsAsLongAsTheRateWhateverTheGradient) {
  for (const double gradient : {1e-4, -3.0, 1e6}) {
    OneWeight one({.epsilon = 1e-30, .weight_decay = 0});
    (void)one.step(gradient);
    EXPECT_NEAR(one.w, 1 - std::copysign(0.1, gradient), 4 * eps<double>);  // c = 4 roundings
  }
}

TEST(Adamw, MultipliesTheRateOfUpdateAndDecay) {
  OneWeight half({.epsilon = 1e-30, .weight_decay = 0.2}, 0.5);
  (void)half.step(-3);
  // w - lr wd w - lr sign(g) with lr = 0.5 * 0.1; c = 4 roundings.
  EXPECT_NEAR(half.w, 1 - 0.05 * 0.2 + 0.05, 4 * eps<double>);
}

TEST(Adamw, TakesAMomentumForEachStep) {
  OneWeight scheduled({}), fixed({});
  for (const double gradient : {0.5, -0.25}) {
    EXPECT_EQ(scheduled.step(gradient, 0.5).momentum, 0.5);
    EXPECT_EQ(fixed.step(gradient).momentum, 0.9);
  }
  // m = 0.5 * 0.5 * 0.5 - 0.5 * 0.25 = 0, corrected by 1 - 0.5^2.
  OneWeight first({});
  (void)first.step(0.5, 0.5);
  EXPECT_NEAR(scheduled.w, first.w * (1 - 0.1 * 0.01), 4 * eps<double>);
  EXPECT_GT(std::abs(scheduled.w - fixed.w), 1e-3);
}

TEST(Adamw, ContinuesBitwiseIdenticallyFromItsState) {
  OneWeight whole({}), rest({});
  for (int step = 0; step < 5; ++step) (void)whole.step(std::sin(step));
  Saver saver;
  whole.optimizer().visit_state(saver);
  const std::vector<SavedState> states{saver.state};
  Loader loader(states, 0);
  rest.w = whole.w;
  rest.optimizer().visit_state(loader);
  for (int step = 5; step < 8; ++step) {
    (void)whole.step(std::sin(step));
    (void)rest.step(std::sin(step));
  }
  EXPECT_EQ(rest.w, whole.w);
  OneWeight forgetful({});  // Control: without the state.
  forgetful.w = whole.w;
  (void)forgetful.step(0.1);
  (void)whole.step(0.1);
  EXPECT_NE(forgetful.w, whole.w);
}

TEST(Adamw, RefusesOptionsOutOfRange) {
  const auto make = [](optim::AdamwOptions options) {
    (void)optim::make_adamw(comm::make_self(), options);
  };
  EXPECT_THROW(make({.beta1 = 1}), InvalidArgument);
  EXPECT_THROW(make({.beta2 = -0.1}), InvalidArgument);
  EXPECT_THROW(make({.beta2 = std::nan("")}), InvalidArgument);
  EXPECT_THROW(make({.epsilon = 0}), InvalidArgument);
  EXPECT_THROW(make({.weight_decay = -1}), InvalidArgument);
  EXPECT_THROW(make({.communication = {.bucket_bytes = 0}}), InvalidArgument);
}

}  // namespace
}  // namespace dkfac::testing
