#include <array>
#include <cmath>

#include <gtest/gtest.h>

#include "dkfac/comm/in_process.h"
#include "dkfac/core/ops.h"
#include "dkfac/core/tensor.h"
#include "dkfac/kfac/inverse.h"

#include "support/natural_gradient.h"
#include "support/near.h"
#include "support/one_layer.h"
#include "support/saved_state.h"

// The K-FAC optimizer on one rank against the same update composed by hand.
namespace dkfac::testing {
namespace {

using optim::MomentumRule, optim::Rescale;

constexpr std::int64_t kBatch = 6, kIn = 3, kOut = 2;

/// Element of the made-up input or output gradient of one step.
double sample(int step, std::int64_t i, double phase) {
  return std::cos(0.7 * step + 1.3 * static_cast<double>(i) + phase);
}

std::vector<double> samples(int step, std::int64_t width, double phase) {
  std::vector<double> x(static_cast<std::size_t>(kBatch * width));
  for (std::size_t i = 0; i < x.size(); ++i)
    x[i] = sample(step, static_cast<std::int64_t>(i), phase);
  return x;
}

/// Packed lower triangle of scale * x'x, x with a last column of ones when `ones`.
std::vector<double> packed_gram(const std::vector<double>& x, std::int64_t width, bool ones,
                                double scale) {
  const std::int64_t d = width + (ones ? 1 : 0);
  const auto at = [&](std::int64_t n, std::int64_t c) {
    return c < width ? x[static_cast<std::size_t>(n * width + c)] : 1.0;
  };
  std::vector<double> packed;
  for (std::int64_t r = 0; r < d; ++r)
    for (std::int64_t c = 0; c <= r; ++c) {
      double sum = 0;
      for (std::int64_t n = 0; n < kBatch; ++n) sum += at(n, r) * at(n, c);
      packed.push_back(scale * sum);
    }
  return packed;
}

optim::KfacOptions options64() {
  optim::KfacOptions options{.curvature = natural_gradient()};
  options.curvature.dtype = DType::f64;
  options.curvature.damping = 0.03;
  options.curvature.statistics.new_weight = 0.3;
  return options;
}

struct Weights {
  std::vector<double> w{0.5, -1, 2, 0.25, 1.5, -0.75}, b{0.1, -0.2};
};

/// What may change from step to step, beside the rate.
struct Changing {
  bool momentum = false, parts = false;

  [[nodiscard]] double momentum_at(int step, double constant) const {
    return momentum ? 0.5 + 0.1 * (step % 5) : constant;
  }
  [[nodiscard]] int parts_at(int step) const { return parts ? 1 + step % 3 : 1; }
};

Weights by_optimizer(const optim::KfacOptions& options, int steps, Changing changing = {}) {
  Weights s, g;
  const auto optimizer = optim::make_kfac(comm::make_self(), options);
  const auto fc =
      optimizer->add_layer("fc", LinearSpec{.in = kIn, .out = kOut},
                           {view_of(s.w.data(), {kOut, kIn}), view_of(s.b.data(), {kOut}),
                            view_of(g.w.data(), {kOut, kIn}), view_of(g.b.data(), {kOut})});
  optimizer->prepare();
  for (int step = 0; step < steps; ++step) {
    const std::vector<double> x = samples(step, kIn, 0), dy = samples(step, kOut, 2);
    const int parts = changing.parts_at(step);
    const kfac::CurvatureOptions& c = options.curvature;
    optimizer->set_curvature({.damping = c.damping,
                              .statistics_interval = c.refresh.statistics_interval,
                              .inverse_interval = c.refresh.inverse_interval,
                              .micro_batches = parts});
    for (int part = 0; part < parts && optimizer->wants_statistics(); ++part) {
      const std::int64_t n = kBatch / parts;
      optimizer->record_input(fc, view_of(x.data() + part * n * kIn, {n, kIn}), Stream::cpu(), {});
      optimizer->record_grad_output(fc, view_of(dy.data() + part * n * kOut, {n, kOut}),
                                    Stream::cpu(), {});
    }
    for (std::size_t i = 0; i < g.w.size(); ++i) g.w[i] = made_up_gradient(step, i);
    for (std::size_t i = 0; i < g.b.size(); ++i) g.b[i] = made_up_gradient(step, 10 + i);
    optimizer->grads_ready(fc, Stream::cpu(), {});
    StepArgs args{.lr = falling_lr(step), .flags = {}};
    if (changing.momentum) args.momentum = changing.momentum_at(step, 0);
    (void)optimizer->step(args, Stream::cpu());
  }
  return s;
}

/// What by_optimizer() does, from the free functions and plain loops.
class Hand {
 public:
  explicit Hand(const optim::KfacOptions& options, Changing changing = {})
      : o_(options), changing_(changing) {}

  void step(int step) {
    if (step % o_.curvature.refresh.statistics_interval == 0) average(step);
    if (step % o_.curvature.refresh.inverse_interval == 0) invert();
    for (std::size_t i = 0; i < u_.w.size(); ++i) u_.w[i] = made_up_gradient(step, i);
    for (std::size_t i = 0; i < u_.b.size(); ++i) u_.b[i] = made_up_gradient(step, 10 + i);
    kfac::precondition(ctx_, a_inverse_, g_inverse_, view_of(u_.w.data(), {kOut, kIn}),
                       view_of(u_.b.data(), {kOut}));
    const double lr = falling_lr(step), last = step == 0 ? 0 : falling_lr(step - 1);
    double m = changing_.momentum_at(step, o_.momentum);
    if (o_.momentum_rule == MomentumRule::corrected && lr < last) m *= lr / last;
    if (o_.momentum_rule == MomentumRule::paper) m *= lr / o_.initial_lr;
    update(state.w, u_.w, v_.w, lr, m, o_.weight_decay, o_.rescale);
    update(state.b, u_.b, v_.b, lr, m, 0, Rescale::off);
  }

  Weights state;

 private:
  void average(int step) {
    // A = sum a a' / N; per-sample gradients are N times those of the mean loss: G = N sum g g'.
    const auto a = packed_gram(samples(step, kIn, 0), kIn, true, 1.0 / kBatch);
    const auto g = packed_gram(samples(step, kOut, 2), kOut, false, kBatch);
    const double weight = kfac::average_weight(o_.curvature.statistics.new_weight, ++count_);
    for (std::size_t i = 0; i < a.size(); ++i) a_[i] += weight * (a[i] - a_[i]);
    for (std::size_t i = 0; i < g.size(); ++i) g_[i] += weight * (g[i] - g_[i]);
  }
  void invert() {
    std::array<std::int32_t, 2> info{};
    kfac::invert_factors(ctx_, view_of(a_.data(), {10}), view_of(g_.data(), {3}),
                         o_.curvature.damping, a_inverse_, g_inverse_, view_of(info.data(), {2}));
  }
  void update(std::vector<double>& w, const std::vector<double>& u, std::vector<double>& v,
              double lr, double m, double decay, Rescale rescale) {
    const std::vector<double> old = w;
    double squares = 0;
    for (std::size_t i = 0; i < w.size(); ++i) {
      v[i] = m * v[i] - lr * (u[i] + decay * w[i]);
      w[i] += v[i];
      squares += w[i] * w[i];
    }
    const double factor = std::sqrt(2.0 * kOut) / (std::sqrt(squares) + 1e-9);
    if (rescale == Rescale::always || (rescale == Rescale::shrink && factor < 1))
      for (double& x : w) x *= factor;
    if (o_.momentum_rule == MomentumRule::paper)
      for (std::size_t i = 0; i < w.size(); ++i) v[i] = w[i] - old[i];
  }

  optim::KfacOptions o_{.curvature = natural_gradient()};
  Changing changing_;
  Context ctx_;
  std::vector<double> a_ = std::vector<double>(10), g_ = std::vector<double>(3);
  Tensor a_inverse_ = Tensor::zeros(ctx_, {kIn + 1, kIn + 1}, DType::f64);
  Tensor g_inverse_ = Tensor::zeros(ctx_, {kOut, kOut}, DType::f64);
  std::int64_t count_ = 0;
  Weights u_, v_{std::vector<double>(6), std::vector<double>(2)};
};

std::vector<double> flat(const Weights& s) {
  std::vector<double> all = s.w;
  all.insert(all.end(), s.b.begin(), s.b.end());
  return all;
}

std::vector<double> by_hand(const optim::KfacOptions& options, int steps, Changing changing = {}) {
  Hand hand(options, changing);
  for (int step = 0; step < steps; ++step) hand.step(step);
  return flat(hand.state);
}

class KfacRule : public ::testing::TestWithParam<std::tuple<MomentumRule, Rescale>> {};

TEST_P(KfacRule, EqualsTheFormulaOverTwentyStepsWithAChangingRate) {
  optim::KfacOptions options = options64();
  std::tie(options.momentum_rule, options.rescale) = GetParam();
  options.initial_lr = 0.1;
  options.weight_decay = 0.02;
  // 20 steps of 4x4 inverses at condition about 1e3: 20 * 4 * 1e3 * eps.
  EXPECT_TRUE(near(flat(by_optimizer(options, 20)), by_hand(options, 20), 1e5 * eps<double>));
}

INSTANTIATE_TEST_SUITE_P(
    Rules, KfacRule,
    ::testing::Combine(::testing::Values(MomentumRule::constant, MomentumRule::corrected,
                                         MomentumRule::paper),
                       ::testing::Values(Rescale::off, Rescale::always, Rescale::shrink)));

TEST_P(KfacRule, TakesAMomentumForEachStep) {
  optim::KfacOptions options = options64();
  std::tie(options.momentum_rule, options.rescale) = GetParam();
  options.initial_lr = 0.1;
  const Changing changing{.momentum = true};
  const auto by_momentum = flat(by_optimizer(options, 20, changing));
  // As above.
  EXPECT_TRUE(near(by_momentum, by_hand(options, 20, changing), 1e5 * eps<double>));
  EXPECT_FALSE(near(by_momentum, by_hand(options, 20), 1e-4));  // Control: the option's.
}

TEST(Kfac, TakesANumberOfMicroBatchesForEachStep) {
  // Where every sample is recorded, it does not matter in how many parts.
  const optim::KfacOptions options = options64();
  const Changing changing{.parts = true};
  // As above.
  EXPECT_TRUE(
      near(flat(by_optimizer(options, 20, changing)), by_hand(options, 20), 1e5 * eps<double>));
}

TEST(Kfac, RulesDifferFromOneAnother) {
  // Negative control of the test above.
  std::vector<std::vector<double>> ends;
  for (const auto rule : {MomentumRule::constant, MomentumRule::corrected, MomentumRule::paper})
    for (const auto rescale : {Rescale::off, Rescale::always}) {
      optim::KfacOptions options = options64();
      options.momentum_rule = rule;
      options.rescale = rescale;
      options.initial_lr = 0.1;
      ends.push_back(flat(by_optimizer(options, 20)));
    }
  for (std::size_t i = 0; i < ends.size(); ++i)
    for (std::size_t j = 0; j < i; ++j) EXPECT_FALSE(near(ends[i], ends[j], 1e-4)) << i << j;
}

TEST(Kfac, RefreshesAtItsIntervals) {
  optim::KfacOptions options = options64();
  options.curvature.refresh.statistics_interval = 2;
  options.curvature.refresh.inverse_interval = 3;
  EXPECT_TRUE(near(flat(by_optimizer(options, 20)), by_hand(options, 20), 1e5 * eps<double>));
  EXPECT_FALSE(near(flat(by_optimizer(options, 20)), by_hand(options64(), 20), 1e-4));
}

TEST(Kfac, KeepsStateOnlyWhereItIsOwned) {
  comm::run_ranks(2, [](auto comm) {
    Weights s, g, t, h;
    optim::KfacOptions options = options64();
    options.curvature.communication.weight_wire = DType::bf16;  // Weights have masters.
    const auto optimizer = optim::make_kfac(comm, options);
    (void)optimizer->add_layer("fc", LinearSpec{.in = kIn, .out = kOut},
                               {view_of(s.w.data(), {6}), view_of(s.b.data(), {2}),
                                view_of(g.w.data(), {6}), view_of(g.b.data(), {2})});
    (void)optimizer->add_layer("plain", PlainSpec{.weight = 6},
                               {view_of(t.w.data(), {6}), {}, view_of(h.w.data(), {6}), {}});
    EXPECT_THROW((void)optimizer->describe(), InvalidArgument);
    optimizer->prepare();
    EXPECT_NE(optimizer->describe().find("linear"), std::string::npos) << optimizer->describe();
    Saver saver;
    optimizer->visit_state(saver);
    // The layer without factors comes last, and goes to the rank that has nothing yet.
    for (const std::string name : {".velocity", ".master"}) {
      EXPECT_EQ(saver.state.contains("fc" + name), comm->rank() == 0) << name;
      EXPECT_EQ(saver.state.contains("plain" + name), comm->rank() == 1) << name;
    }
  });
}

TEST(Kfac, CountsOperandsThatUnderflow) {
  optim::KfacOptions options = options64();
  options.curvature.statistics.operand = DType::f16;
  const auto optimizer = optim::make_kfac(comm::make_self(), options);
  std::vector<double> w(2, 1.0), g(2, 0.5), x{1, 1e-12, 2, 1e-13}, dy{1, 2};
  const auto fc = optimizer->add_layer("fc", LinearSpec{.in = 2, .out = 1, .bias = false},
                                       {view_of(w.data(), {2}), {}, view_of(g.data(), {2}), {}});
  optimizer->prepare();
  for (int step = 0; step < 2; ++step) {
    optimizer->record_input(fc, view_of(x.data(), {2, 2}), Stream::cpu(), {});
    optimizer->record_grad_output(fc, view_of(dy.data(), {2, 1}), Stream::cpu(), {});
    optimizer->grads_ready(fc, Stream::cpu(), {});
    EXPECT_EQ(optimizer->step({.lr = 0.1, .flags = {}}, Stream::cpu()).underflow, 2);
  }
}

TEST(Kfac, ScalesOperandsAfterARecordOfZeros) {
  optim::KfacOptions options = options64();
  options.curvature.statistics.operand = DType::f16;
  const auto optimizer = optim::make_kfac(comm::make_self(), options);
  std::vector<double> w(2, 1.0), g(2, 0.5), x{1, 2, 3, 4};
  const auto fc = optimizer->add_layer("fc", LinearSpec{.in = 2, .out = 1, .bias = false},
                                       {view_of(w.data(), {2}), {}, view_of(g.data(), {2}), {}});
  optimizer->prepare();
  // 1e-9 is 0 in f16 unless it is scaled.
  for (std::vector<double> dy : {std::vector<double>{0, 0}, {1e-9, -1e-9}}) {
    optimizer->record_input(fc, view_of(x.data(), {2, 2}), Stream::cpu(), {});
    optimizer->record_grad_output(fc, view_of(dy.data(), {2, 1}), Stream::cpu(), {});
    optimizer->grads_ready(fc, Stream::cpu(), {});
    EXPECT_EQ(optimizer->step({.lr = 0.1, .flags = {}}, Stream::cpu()).underflow, 0) << dy[0];
  }
}

TEST(Kfac, RefusesARateAtWhichThePapersMomentumWouldGrow) {
  optim::KfacOptions options = options64();
  options.momentum_rule = MomentumRule::paper;
  options.initial_lr = 0.1;
  const auto optimizer = optim::make_kfac(comm::make_self(), options);
  std::vector<double> w(2, 1.0), g(2, 0.5);
  const auto id = optimizer->add_layer(
      "a", PlainSpec{.weight = 2},
      {.weight = view_of(w.data(), {2}), .weight_grad = view_of(g.data(), {2})});
  optimizer->prepare();
  optimizer->grads_ready(id);
  EXPECT_THROW((void)optimizer->step({.lr = 0.2}), InvalidArgument);  // 0.9 / 0.1 * 0.2
  EXPECT_EQ(w, (std::vector<double>{1, 1}));
  EXPECT_NEAR(optimizer->step({.lr = 0.11}).momentum, 0.99, 4 * eps<double>);
}

TEST(Kfac, RefusesOptionsOutOfRange) {
  const auto make = [](optim::KfacOptions options) {
    (void)optim::make_kfac(comm::make_self(), options);
  };
  EXPECT_THROW(make({.curvature = natural_gradient({}), .momentum = 1}), InvalidArgument);
  EXPECT_THROW(make({.curvature = natural_gradient({}), .weight_decay = -1}), InvalidArgument);
  EXPECT_THROW(make({.curvature = natural_gradient({}), .momentum_rule = MomentumRule::paper}),
               InvalidArgument);
  optim::KfacOptions bad{.curvature = natural_gradient()};
  bad.curvature.damping = -1;
  EXPECT_THROW(make(bad), InvalidArgument);
}

}  // namespace
}  // namespace dkfac::testing
