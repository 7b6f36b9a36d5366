#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include <gtest/gtest.h>

#include "dkfac/comm/in_process.h"
#include "dkfac/core/error.h"

#include "support/near.h"
#include "support/one_layer.h"
#include "support/plain_training.h"
#include "support/saved_state.h"

namespace dkfac::testing {
namespace {

using optim::MuonOptions, optim::MuonScale;

// 20 steps in f64 of about 20 roundings each; five iterations enlarge one by at most 485.
constexpr double kMuonTolerance = 1e-12;

/// Distinguishes the correct result from a nearly correct one.
struct WrongMuon {
  bool coupled_decay = false, flattened = false, decays_biases = false;
  int iterations = 5;
};

/// x <- newton_schulz(x) of a matrix [rows, columns], in plain loops.
std::vector<double> orthogonalized(std::vector<double> x, std::size_t rows, std::size_t columns,
                                   int iterations) {
  double squares = 0;
  for (const double value : x) squares += value * value;
  for (double& value : x) value /= std::sqrt(squares + 1e-14);
  const auto product = [rows, columns](const std::vector<double>& gram,
                                       const std::vector<double>& y) {
    std::vector<double> out(y.size(), 0.0);
    for (std::size_t i = 0; i < rows; ++i)
      for (std::size_t k = 0; k < rows; ++k)
        for (std::size_t j = 0; j < columns; ++j)
          out[i * columns + j] += gram[i * rows + k] * y[k * columns + j];
    return out;
  };
  for (int t = 0; t < iterations; ++t) {
    std::vector<double> gram(rows * rows, 0.0);
    for (std::size_t i = 0; i < rows; ++i)
      for (std::size_t k = 0; k < rows; ++k)
        for (std::size_t j = 0; j < columns; ++j)
          gram[i * rows + k] += x[i * columns + j] * x[k * columns + j];
    const std::vector<double> cubic = product(gram, x), quintic = product(gram, cubic);
    for (std::size_t i = 0; i < x.size(); ++i)
      x[i] = 3.4445 * x[i] - 4.7750 * cubic[i] + 2.0315 * quintic[i];
  }
  return x;
}

/// The formulas of MuonOptions for the net of one_layer.h, whose weight is [2,3].
HandState muon_by_hand(const MuonOptions& o, WrongMuon wrong = {}) {
  struct Moments {
    std::vector<double> first, second;
    int t = 0;
  };
  std::map<const void*, Moments> all;
  const double scale = o.scale == MuonScale::original ? 1 : 0.2 * std::sqrt(3.0);
  return run_by_hand([&](auto& w, const auto& given, auto& v, double lr, double, bool is_weight) {
    if (is_weight) {
      std::vector<double> u(w.size());
      for (std::size_t i = 0; i < w.size(); ++i) {
        const double g = given[i] + (wrong.coupled_decay ? o.weight_decay * w[i] : 0);
        v[i] = o.momentum * v[i] + g;
        u[i] = o.nesterov ? g + o.momentum * v[i] : v[i];
      }
      u = wrong.flattened ? orthogonalized(u, 1, 6, wrong.iterations)
                          : orthogonalized(u, 2, 3, wrong.iterations);
      const double kept = wrong.coupled_decay ? 1 : 1 - lr * o.weight_decay;
      for (std::size_t i = 0; i < w.size(); ++i) w[i] = kept * w[i] - lr * scale * u[i];
      return;
    }
    Moments& m = all[&w];
    m.first.resize(w.size());
    m.second.resize(w.size());
    ++m.t;
    for (std::size_t i = 0; i < w.size(); ++i) {
      m.first[i] = o.beta1 * m.first[i] + (1 - o.beta1) * given[i];
      m.second[i] = o.beta2 * m.second[i] + (1 - o.beta2) * given[i] * given[i];
      const double first = m.first[i] / (1 - std::pow(o.beta1, m.t));
      const double second = m.second[i] / (1 - std::pow(o.beta2, m.t));
      const double rate = lr * o.adam_rate;
      if (wrong.decays_biases) w[i] -= rate * o.weight_decay * w[i];
      w[i] -= rate * first / (std::sqrt(second) + o.epsilon);
    }
  });
}

std::vector<double> run_muon(const MuonOptions& options) {
  return flat(run_optimizer(*optim::make_muon(comm::make_self(), options)));
}

TEST(Muon, EqualsTheFormulaOverTwentyStepsWithAChangingRate) {
  for (const bool nesterov : {true, false})
    for (const MuonScale scale : {MuonScale::original, MuonScale::match_rms_adamw}) {
      const MuonOptions options{
          .nesterov = nesterov, .weight_decay = 0.3, .scale = scale, .adam_rate = 0.5};
      const std::vector<double> here = run_muon(options);
      EXPECT_TRUE(near(here, flat(muon_by_hand(options)), kMuonTolerance));
      for (const WrongMuon wrong : {WrongMuon{.coupled_decay = true}, WrongMuon{.flattened = true},
                                    WrongMuon{.decays_biases = true}, WrongMuon{.iterations = 4}})
        EXPECT_FALSE(near(here, flat(muon_by_hand(options, wrong)), 1e-3));
      MuonOptions other = options;
      other.nesterov = !nesterov;
      EXPECT_FALSE(near(here, flat(muon_by_hand(other)), 1e-3));
    }
}

/// One layer in f64 with gradients that a test sets, and an optimizer of its own.
class OneMatrix {
 public:
  OneMatrix(const LayerSpec& spec, MuonOptions options = {}, double weight_lr = 1)
      : w(static_cast<std::size_t>(weight_numel(spec))),
        g(w.size()),
        optimizer(optim::make_muon(comm::make_self(), options)) {
    for (std::size_t i = 0; i < w.size(); ++i) w[i] = std::cos(static_cast<double>(i));
    const Shape shape{static_cast<std::int64_t>(w.size())};
    id_ = optimizer->add_layer(
        "fc", spec,
        {.weight = view_of(w, shape), .weight_grad = view_of(g, shape), .weight_lr = weight_lr});
    optimizer->prepare();
  }
  kfac::StepReport step(int t, std::optional<double> momentum = {}) {
    for (std::size_t i = 0; i < g.size(); ++i) g[i] = made_up_gradient(t, i);
    return update(momentum);
  }
  kfac::StepReport update(std::optional<double> momentum = {}) {
    optimizer->grads_ready(id_);
    return optimizer->step({.lr = 0.1, .momentum = momentum});
  }
  std::vector<double> w, g;
  std::unique_ptr<optim::Optimizer> optimizer;

 private:
  LayerId id_{};
};

LayerSpec linear_without_bias(std::int64_t rows, std::int64_t columns) {
  return LinearSpec{.in = columns, .out = rows, .bias = false};
}

TEST(Muon, FlattensAConvolution) {
  // [out, kh*kw*in]: [4, 2*3*2], and [4, 2*3*1] with two groups.
  for (const int groups : {1, 2}) {
    Conv2dSpec spec{.in = 2, .out = 4, .bias = false, .groups = groups};
    spec.window.kernel_h = 2;
    spec.window.kernel_w = 3;
    OneMatrix conv(spec), linear(linear_without_bias(4, 12 / groups)),
        wrong(linear_without_bias(2, 24 / groups));
    for (int t = 0; t < 3; ++t)
      for (OneMatrix* one : {&conv, &linear, &wrong}) (void)one->step(t);
    EXPECT_EQ(conv.w, linear.w);
    EXPECT_NE(conv.w, wrong.w);
  }
}

TEST(Muon, UpdatesARowAndAColumnByTheirDirection) {
  // The only singular value s = 1 becomes p(s) of five iterations; the direction stays.
  double s = 1;
  for (int i = 0; i < 5; ++i) s = 3.4445 * s - 4.7750 * std::pow(s, 3) + 2.0315 * std::pow(s, 5);
  for (const auto& [rows, columns] : {std::pair{1, 7}, {7, 1}}) {
    OneMatrix one(linear_without_bias(rows, columns),
                  {.weight_decay = 0, .scale = MuonScale::original});
    const std::vector<double> before = one.w;
    (void)one.step(0);
    const double scale = rows == 7 ? std::sqrt(7.0) : 1;
    double norm = 0;
    for (const double x : one.g) norm += x * x;
    for (std::size_t i = 0; i < before.size(); ++i)
      EXPECT_NEAR(one.w[i], before[i] - 0.1 * scale * s * one.g[i] / std::sqrt(norm), 1e-13) << i;
  }
}

TEST(Muon, StaysWhereTheGradientIsZero) {
  OneMatrix one(linear_without_bias(3, 5), {.weight_decay = 0});
  const std::vector<double> before = one.w;
  EXPECT_TRUE(one.update().updated);
  EXPECT_EQ(one.w, before);
  (void)one.step(1);
  EXPECT_NE(one.w, before);
}

TEST(Muon, ASkippedStepIsNone) {
  OneMatrix with(linear_without_bias(2, 3)), without(linear_without_bias(2, 3));
  for (OneMatrix* one : {&with, &without}) (void)one->step(0);
  with.g[1] = std::nan("");
  EXPECT_FALSE(with.update().updated);
  for (OneMatrix* one : {&with, &without}) (void)one->step(1);
  EXPECT_EQ(with.w, without.w);
}

TEST(Muon, MultipliesTheRateOfUpdateAndDecay) {
  OneMatrix whole(linear_without_bias(2, 3)), half(linear_without_bias(2, 3), {}, 0.5);
  const std::vector<double> before = whole.w;
  (void)whole.step(0);
  (void)half.step(0);
  for (std::size_t i = 0; i < before.size(); ++i)
    EXPECT_NEAR(half.w[i] - before[i], (whole.w[i] - before[i]) / 2, 4 * eps<double>);
}

TEST(Muon, TakesAMomentumForEachStep) {
  OneMatrix scheduled(linear_without_bias(2, 3)), fixed(linear_without_bias(2, 3)),
      other(linear_without_bias(2, 3), {.momentum = 0.5});
  for (int t = 0; t < 3; ++t) {
    EXPECT_EQ(scheduled.step(t, 0.5).momentum, 0.5);
    EXPECT_EQ(fixed.step(t).momentum, 0.95);
    (void)other.step(t);
  }
  EXPECT_EQ(scheduled.w, other.w);
  EXPECT_NE(scheduled.w, fixed.w);
}

TEST(Muon, UpdatesWhatIsNoMatrixAsAdamwDoes) {
  const MuonOptions options{.weight_decay = 0.3, .adam_rate = 1};
  for (const LayerSpec& spec :
       {LayerSpec{PlainSpec{.weight = 6}}, LayerSpec{EmbeddingSpec{.vocabulary = 3, .width = 2}}}) {
    OneMatrix one(spec, options);
    std::vector<double> w = one.w, g = w;
    const auto adamw =
        optim::make_adamw(comm::make_self(), {.beta2 = options.beta2, .weight_decay = 0.3});
    const LayerId id =
        adamw->add_layer("fc", spec, {.weight = view_of(w, {6}), .weight_grad = view_of(g, {6})});
    adamw->prepare();
    for (int t = 0; t < 3; ++t) {
      (void)one.step(t);
      g = one.g;
      adamw->grads_ready(id);
      (void)adamw->step({.lr = 0.1});
    }
    EXPECT_EQ(one.w, w);
  }
}

TEST(Muon, ContinuesBitwiseIdenticallyFromItsState) {
  OneMatrix whole(linear_without_bias(2, 3)), rest(linear_without_bias(2, 3));
  for (int t = 0; t < 5; ++t) (void)whole.step(t);
  Saver saver;
  whole.optimizer->visit_state(saver);
  EXPECT_EQ(saver.state.at("fc.velocity").shape, (Shape{6}));
  EXPECT_FALSE(saver.state.contains("fc.first_moment")) << "a matrix keeps one number";
  const std::vector<SavedState> states{saver.state};
  Loader loader(states, 0);
  rest.w = whole.w;
  rest.optimizer->visit_state(loader);
  OneMatrix forgetful(linear_without_bias(2, 3));  // Control: without the state.
  forgetful.w = whole.w;
  for (int t = 5; t < 8; ++t)
    for (OneMatrix* one : {&whole, &rest, &forgetful}) (void)one->step(t);
  EXPECT_EQ(rest.w, whole.w);
  EXPECT_NE(forgetful.w, whole.w);
}

/// Loss after 40 steps on one batch, as a fraction of the loss before.
double lowered_loss(std::unique_ptr<optim::Optimizer> optimizer, double lr) {
  PlainNet<double> net(3);
  const std::vector<LayerId> ids = register_layers(*optimizer, net);
  optimizer->prepare();
  const auto batch = plain_batch<double>(0, 0, 24);
  const double before = net.forward(batch);
  for (int step = 0; step < 40; ++step) {
    const PlainHooks hooks = optimizer_hooks<double>(*optimizer, ids, {});
    (void)net.forward(batch, hooks);
    net.backward(1.0 / 24, hooks);
    (void)optimizer->step({.lr = lr});
  }
  return net.forward(batch) / before;
}

TEST(Muon, LowersTheLossOfASmallNetworkAsOthersDo) {
  const auto self = [] { return comm::make_self(); };
  const double muon = lowered_loss(optim::make_muon(self(), {.weight_decay = 0}), 0.05);
  const double adamw = lowered_loss(optim::make_adamw(self(), {.weight_decay = 0}), 0.05);
  const double sgd = lowered_loss(optim::make_sgd(self(), {}), 0.05);
  EXPECT_LT(muon, 0.1);
  EXPECT_LT(adamw, 0.1);
  EXPECT_LT(sgd, 0.1);
  EXPECT_EQ(lowered_loss(optim::make_muon(self(), {}), 0), 1) << "control";
}

TEST(Muon, RefusesOptionsOutOfRange) {
  const auto make = [](MuonOptions options) { (void)optim::make_muon(comm::make_self(), options); };
  EXPECT_THROW(make({.momentum = 1}), InvalidArgument);
  EXPECT_THROW(make({.weight_decay = -1}), InvalidArgument);
  EXPECT_THROW(make({.scale = static_cast<MuonScale>(7)}), InvalidArgument);
  EXPECT_THROW(make({.adam_rate = -1}), InvalidArgument);
  EXPECT_THROW(make({.beta1 = 1}), InvalidArgument);
  EXPECT_THROW(make({.beta2 = std::nan("")}), InvalidArgument);
  EXPECT_THROW(make({.epsilon = 0}), InvalidArgument);
  EXPECT_THROW(make({.communication = {.bucket_bytes = 0}}), InvalidArgument);
  EXPECT_THROW(make({.communication = {.weight_wire = DType::bf16}}), InvalidArgument);
}

}  // namespace
}  // namespace dkfac::testing
