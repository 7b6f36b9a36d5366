#include <gtest/gtest.h>

#include "support/near.h"
#include "support/one_layer.h"

namespace dkfac::testing {
namespace {

// 20 steps in f64: about 20 * 10 roundings and 8-term norms, far below this.
constexpr double kLarsTolerance = 1e-12;

double norm_of(const std::vector<double>& x) {
  double sum = 0;
  for (const double e : x) sum += e * e;
  return std::sqrt(sum);
}

std::vector<double> run_lars(optim::LarsOptions options) {
  return flat(run_optimizer(*optim::make_lars(comm::make_self(), options)));
}

HandRule lars_rule(const optim::LarsOptions& o, bool everywhere = false) {
  return [o, everywhere](auto& w, const auto& g, auto& v, double lr, double, bool is_weight) {
    const bool adapted = is_weight || everywhere;
    const double wd = adapted ? o.weight_decay : 0;
    const double trust =
        adapted ? o.eta * norm_of(w) / (norm_of(g) + wd * norm_of(w) + o.epsilon) : 1;
    for (std::size_t i = 0; i < w.size(); ++i) {
      const double step = lr * trust * (g[i] + wd * w[i]);
      v[i] = o.momentum * v[i] - step;
      w[i] += o.nesterov ? o.momentum * v[i] - step : v[i];
    }
  };
}

TEST(Lars, EqualsTheFormulaOverTwentyStepsWithAChangingRate) {
  for (const bool nesterov : {false, true}) {
    const optim::LarsOptions options{
        .nesterov = nesterov, .weight_decay = 0.03, .eta = 0.2, .epsilon = 1e-3};
    EXPECT_TRUE(near(run_lars(options), flat(run_by_hand(lars_rule(options))), kLarsTolerance));
  }
}

double decay_of(const optim::LarsOptions& o, bool is_weight) {
  return is_weight ? o.weight_decay : 0;
}

/// g + wd w.
std::vector<double> decayed(const std::vector<double>& g, const std::vector<double>& w, double wd) {
  std::vector<double> sum(g);
  for (std::size_t i = 0; i < g.size(); ++i) sum[i] += wd * w[i];
  return sum;
}

/// LARC as a rescaled gradient followed by PyTorch's SGD, whose buffer does not contain the rate.
HandRule larc_rule(const optim::LarsOptions& o) {
  return [o](auto& w, const auto& g, auto& buffer, double lr, double, bool is_weight) {
    const double wd = decay_of(o, is_weight);
    const double local =
        is_weight ? o.eta * norm_of(w) / (norm_of(g) + wd * norm_of(w) + o.epsilon) : lr;
    const std::vector<double> sum = decayed(g, w, wd);
    for (std::size_t i = 0; i < w.size(); ++i) {
      const double scaled = std::min(local / lr, 1.0) * sum[i];
      buffer[i] = o.momentum * buffer[i] + scaled;
      w[i] -= lr * (o.nesterov ? scaled + o.momentum * buffer[i] : buffer[i]);
    }
  };
}

/// SimCLR's LARS: the decay is part of the gradient from the start.
HandRule joint_norm_rule(const optim::LarsOptions& o) {
  return [o](auto& w, const auto& g, auto& buffer, double lr, double, bool is_weight) {
    const std::vector<double> sum = decayed(g, w, decay_of(o, is_weight));
    const double trust = is_weight ? o.eta * norm_of(w) / (norm_of(sum) + o.epsilon) : 1;
    for (std::size_t i = 0; i < w.size(); ++i) {
      buffer[i] = o.momentum * buffer[i] + lr * trust * sum[i];
      w[i] -= o.nesterov ? o.momentum * buffer[i] + lr * trust * sum[i] : buffer[i];
    }
  };
}

HandRule clipped_rule(const optim::LarsOptions& o) {
  return [o](auto& w, const auto& g, auto& buffer, double lr, double, bool is_weight) {
    const double wd = decay_of(o, is_weight);
    const double ratio = o.eta * norm_of(w) / (norm_of(g) + wd * norm_of(w) + o.epsilon);
    const double trust = is_weight ? std::min(std::max(ratio, o.min_trust), o.max_trust) : 1;
    const std::vector<double> sum = decayed(g, w, wd);
    for (std::size_t i = 0; i < w.size(); ++i) {
      buffer[i] = o.momentum * buffer[i] + lr * trust * sum[i];
      w[i] -= o.nesterov ? o.momentum * buffer[i] + lr * trust * sum[i] : buffer[i];
    }
  };
}

TEST(Lars, EachFormEqualsItsFormulaOverTwentySteps) {
  for (const bool nesterov : {false, true}) {
    // With this eta LARC's limit is reached in some steps, and both limits of the ratio are.
    optim::LarsOptions o{.nesterov = nesterov,
                         .weight_decay = 0.3,
                         .eta = 0.06,
                         .epsilon = 1e-3,
                         .min_trust = 0.06,
                         .max_trust = 0.062};
    std::vector<std::vector<double>> ends;
    const auto expect = [&](optim::LarsForm form, const HandRule& rule) {
      o.form = form;
      ends.push_back(flat(run_by_hand(rule)));
      EXPECT_TRUE(near(run_lars(o), ends.back(), kLarsTolerance)) << "form " << ends.size();
    };
    expect(optim::LarsForm::mlperf, lars_rule(o));
    expect(optim::LarsForm::larc, larc_rule(o));
    expect(optim::LarsForm::joint_norm, joint_norm_rule(o));
    expect(optim::LarsForm::clipped, clipped_rule(o));
    // Control: the forms differ.
    for (std::size_t a = 0; a < ends.size(); ++a)
      for (std::size_t b = 0; b < a; ++b) EXPECT_FALSE(near(ends[a], ends[b], 1e-3)) << a << b;
  }
}

TEST(Lars, LarcNeverStepsFurtherThanTheRate) {
  const auto ratio = [](double lr) {
    return optim::lars_trust_ratio({.form = optim::LarsForm::larc, .eta = 0.06}, 2, 1, lr) * lr;
  };
  EXPECT_EQ(ratio(0.05), 0.05);         // The rate is smaller than 0.12 / (1 + 2e-4).
  EXPECT_NEAR(ratio(0.5), 0.12, 1e-3);  // The local rate is.
}

TEST(Lars, TakesAMomentumForEachStep) {
  const auto momentum = [](double lr) { return lr < 0.05 ? 0.95 : 0.6; };
  const optim::LarsOptions options{.weight_decay = 0.03, .eta = 0.2};
  const auto by_hand =
      run_by_hand([&](auto& w, const auto& g, auto& v, double lr, double last, bool is_weight) {
        optim::LarsOptions now = options;
        now.momentum = momentum(lr);
        lars_rule(now)(w, g, v, lr, last, is_weight);
      });
  const auto optimizer = optim::make_lars(comm::make_self(), options);
  EXPECT_TRUE(near(flat(run_optimizer(*optimizer, falling_lr, 20, momentum)), flat(by_hand),
                   kLarsTolerance));
  EXPECT_FALSE(near(run_lars(options), flat(by_hand), 1e-3));  // Control: the option's.
}

TEST(Lars, ReportsTheMomentumOfEachStep) {
  double w = 1, g = 0.5;
  const auto optimizer = optim::make_lars(comm::make_self(), {.momentum = 0.9});
  const auto id = optimizer->add_layer("w", PlainSpec{.weight = 1},
                                       {view_of(&w, {1}), {}, view_of(&g, {1}), {}});
  optimizer->prepare();
  const auto reported = [&](double lr, std::optional<double> momentum) {
    optimizer->grads_ready(id, Stream::cpu(), {});
    return optimizer->step({.lr = lr, .flags = {}, .momentum = momentum}, Stream::cpu()).momentum;
  };
  EXPECT_EQ(reported(0.1, std::nullopt), 0.9);
  EXPECT_EQ(reported(0.04, std::nullopt), 0.9);  // It is not corrected.
  EXPECT_EQ(reported(0.04, 0.6), 0.6);
}

TEST(Lars, TreatsBiasesAndBatchNormAsPlainMomentum) {
  // Negative control: trust ratios everywhere would show.
  const optim::LarsOptions options{.weight_decay = 0.03, .eta = 0.2};
  EXPECT_FALSE(near(run_lars(options), flat(run_by_hand(lars_rule(options, true))), 1e-3));
}

TEST(Lars, StaysFiniteWithZeroWeightsOrZeroGradients) {
  for (const bool zero_weight : {true, false}) {
    const auto optimizer = optim::make_lars(comm::make_self(), {});
    std::vector<double> w(4, zero_weight ? 0.0 : 1.0), g(4, zero_weight ? 1.0 : 0.0);
    const LinearSpec spec{.in = 2, .out = 2, .bias = false};
    const auto id =
        optimizer->add_layer("fc", spec, {view_of(w.data(), {4}), {}, view_of(g.data(), {4}), {}});
    optimizer->prepare();
    optimizer->grads_ready(id, Stream::cpu(), {});
    (void)optimizer->step({.lr = 0.5, .flags = {}}, Stream::cpu());
    // Trust 1: w - lr (g + wd w).
    for (const double x : w) EXPECT_DOUBLE_EQ(x, zero_weight ? -0.5 : 1 - 0.5 * 1e-4);
  }
}

TEST(Lars, RefusesOptionsOutOfRange) {
  const auto make = [](optim::LarsOptions options) {
    (void)optim::make_lars(comm::make_self(), options);
  };
  EXPECT_THROW(make({.momentum = 1}), InvalidArgument);
  EXPECT_THROW(make({.weight_decay = -1}), InvalidArgument);
  EXPECT_THROW(make({.eta = 0}), InvalidArgument);
  EXPECT_THROW(make({.eta = std::nan("")}), InvalidArgument);
  EXPECT_THROW(make({.epsilon = -1e-9}), InvalidArgument);
  EXPECT_THROW(make({.form = static_cast<optim::LarsForm>(9)}), InvalidArgument);
  EXPECT_THROW(make({.min_trust = 0}), InvalidArgument);
  EXPECT_THROW(make({.form = optim::LarsForm::clipped, .min_trust = 0.5, .max_trust = 0.1}),
               InvalidArgument);
  EXPECT_THROW(make({.communication = {.bucket_bytes = -5}}), InvalidArgument);
}

}  // namespace
}  // namespace dkfac::testing
