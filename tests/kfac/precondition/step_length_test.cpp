#include "kfac/precondition/step_length.h"

#include <cmath>
#include <limits>
#include <utility>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"

#include "kfac/shared/length_rule.h"
#include "support/natural_gradient.h"
#include "support/near.h"
#include "support/plain_training.h"
#include "support/saved_state.h"

namespace dkfac::testing {
namespace {

using kfac::length_factors;
using kfac::StepLength;

constexpr double kInfinite = std::numeric_limits<double>::infinity();

double product(const std::vector<double>& x, const std::vector<double>& y) {
  double sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) sum += x[i] * y[i];
  return sum;
}

TEST(LengthFactors, AreTheFormulas) {
  const kfac::LengthProducts p{.vv = 4, .uu = 16, .uv = 2};  // Cosine 0.25, of |V|/|U| = 0.5.
  EXPECT_DOUBLE_EQ(length_factors(StepLength::projection, p).direction, 0.125);
  EXPECT_EQ(length_factors(StepLength::projection, p).gradient, 0);
  const kfac::LengthFactors near =
      length_factors(StepLength::gradient, {.vv = 4, .uu = 16, .uv = 8 * 0.64});
  EXPECT_DOUBLE_EQ(near.direction, 0.5 / 0.8);
  EXPECT_EQ(near.gradient, 0);
}

TEST(LengthFactors, TurnADirectionTowardsTheGradientUpToTheLeastCosine) {
  for (const double angle : {0.2, 1.0, 1.26, 1.27, 1.4, 1.57}) {
    // V = (3, 0), U = 5 (cos, sin): the step by its two components.
    const double cosine = std::cos(angle), sine = std::sin(angle);
    const kfac::LengthFactors step =
        length_factors(StepLength::gradient, {.vv = 9, .uu = 25, .uv = 15 * cosine});
    const double along = 5 * step.direction * cosine + 3 * step.gradient;
    const double across = 5 * step.direction * sine, length = std::hypot(along, across);
    const double kept = std::max(cosine, kfac::kLeastCosine);
    EXPECT_NEAR(along / length, kept, 1e-13) << angle;
    EXPECT_NEAR(length, 3 / std::sqrt(kept), 1e-12) << angle;
    EXPECT_GT(across, 0) << angle;
  }
}

TEST(LengthFactors, LeaveTheGradientWhereADirectionHasNoUsableLength) {
  for (const StepLength rule : {StepLength::gradient, StepLength::projection})
    for (const kfac::LengthProducts p : {kfac::LengthProducts{.vv = 1, .uu = 0, .uv = 0},
                                         {.vv = 1, .uu = kInfinite, .uv = 1},
                                         {.vv = 1, .uu = std::nan(""), .uv = 1},
                                         {.vv = std::nan(""), .uu = 1, .uv = std::nan("")},
                                         {.vv = 1, .uu = 1, .uv = -1},
                                         {.vv = 0, .uu = 0, .uv = 0}}) {
      EXPECT_EQ(length_factors(rule, p).direction, 0);
      EXPECT_EQ(length_factors(rule, p).gradient, 1);
    }
}

TEST(LengthExponent, IsThatOfAProjectionAtFirstAndWhileGradientsOpposeSteps) {
  EXPECT_DOUBLE_EQ(kfac::length_exponent(1, 0), 1.5 * 0.9 - 0.5);
  EXPECT_DOUBLE_EQ(kfac::length_exponent(10, 0), -0.5);
  EXPECT_DOUBLE_EQ(kfac::length_exponent(1e6, 0.9), -0.5);
  EXPECT_DOUBLE_EQ(kfac::length_exponent(1e6, -0.025), 1.5 * 0.5 - 0.5);
  EXPECT_DOUBLE_EQ(kfac::length_exponent(1e6, -0.9), 1);
  EXPECT_DOUBLE_EQ(kfac::length_exponent(8, -0.025), 1.5 * 0.5 - 0.5);  // The larger one counts.
  const kfac::LengthProducts p{.vv = 4, .uu = 16, .uv = 8 * 0.64};
  EXPECT_DOUBLE_EQ(length_factors(StepLength::gradient, p, 0.3, 1).direction,
                   length_factors(StepLength::projection, p).direction);
}

TEST(LengthExponent, FollowsTheMeanCosineOfGradientsAndTheStepsBeforeThem) {
  double lengths[kfac::kLengths] = {};
  const double opposed[] = {4, -1, 0.25}, across[] = {9, 0, 1};
  kfac::enter_cosine(opposed, lengths);
  EXPECT_DOUBLE_EQ(lengths[kfac::kAlong], -0.1);
  kfac::enter_cosine(across, lengths);
  EXPECT_DOUBLE_EQ(lengths[kfac::kAlong], -0.09);
  for (const double none : {0., kInfinite, std::nan("")}) {
    const double gradient[] = {none, none, 1}, step[] = {1, none, none};
    kfac::enter_cosine(gradient, lengths);
    kfac::enter_cosine(step, lengths);
  }
  EXPECT_DOUBLE_EQ(lengths[kfac::kAlong], -0.09);
}

/// The largest loss |w|^2/2 from w = 1 on, as a multiple of the first, over steps of a rate that
/// the gradient w bears, 1.8 of 2, along U = D w with D from 1 to 64. steps: those already taken.
double largest_loss(double steps) {
  constexpr int kWidth = 16;
  std::vector<double> w(kWidth, 1), u(kWidth), last(kWidth, 0);
  double lengths[kfac::kLengths] = {}, largest = 0, factors[2];
  lengths[kfac::kSteps] = steps;
  lengths[kfac::kMeanLength] = steps > 0 ? std::sqrt(product(w, w)) : 0;
  for (int step = 0; step < 50; ++step) {
    for (std::size_t i = 0; i < w.size(); ++i)
      u[i] = std::pow(64, static_cast<double>(i) / (kWidth - 1)) * w[i];
    const double products[6] = {product(w, w), product(u, u), product(u, w)};
    const double before[3] = {product(w, w), product(w, last), product(last, last)};
    kfac::store_length_factors(StepLength::gradient, products, before, lengths, factors);
    for (std::size_t i = 0; i < w.size(); ++i) {
      last[i] = factors[0] * u[i] + factors[1] * w[i];
      w[i] -= 1.8 * last[i];
    }
    largest = std::max(largest, product(w, w) / kWidth);
  }
  EXPECT_LT(product(w, w), 0.1 * kWidth);
  return largest;
}

TEST(LengthExponent, BearsARateThatTheGradientBearsInTheFirstSteps) {
  EXPECT_LT(largest_loss(0), 1.1);
  EXPECT_GT(largest_loss(1000), 2);  // Later steps are longer.
}

TEST(LengthBound, LetsALengthGrowByAFractionOfTheMean) {
  double lengths[kfac::kLengths] = {};
  EXPECT_EQ(kfac::bound_length(4, lengths), 1);  // The first is free.
  EXPECT_EQ(kfac::bound_length(2, lengths), 1);
  EXPECT_DOUBLE_EQ(lengths[kfac::kMeanLength], 3);
  EXPECT_DOUBLE_EQ(kfac::bound_length(42, lengths), 0.1);  // 1.4 * 3 of 42
  EXPECT_DOUBLE_EQ(lengths[kfac::kMeanLength], 3.4);       // (4 + 2 + 4.2) / 3
  for (int i = 0; i < 100; ++i) EXPECT_EQ(kfac::bound_length(3.4, lengths), 1);
  const double mean = lengths[kfac::kMeanLength];
  EXPECT_DOUBLE_EQ(kfac::bound_length(1e6, lengths), 1.4 * mean / 1e6);
  EXPECT_DOUBLE_EQ(lengths[kfac::kMeanLength], (1 + 0.4 * kfac::kLengthWeight) * mean);
}

/// Returns whether the bound cuts one of 100 lengths that grow by this share a step after 100 equal
/// ones, while gradients have this mean cosine to the steps before them.
bool cuts_growth(double share, double along) {
  double lengths[kfac::kLengths] = {};
  for (int i = 0; i < 100; ++i) (void)kfac::bound_length(1, lengths);
  lengths[kfac::kAlong] = along;
  double length = 1, least = 1;
  for (int i = 0; i < 100; ++i)
    least = std::min(least, kfac::bound_length(length *= 1 + share, lengths));
  return least < 1;
}

TEST(LengthBound, FollowsAGrowthThatAgreesWithTheStepsBefore) {
  // With a weight of w, lengths that grow by s a step for ever tend to 1 + s/w times their mean.
  for (const double along : {-0.5, 0., 0.01, 0.1, 0.5, 1.}) {
    const double weight = kfac::kLengthWeight + kfac::kAgreement * std::max(0., along);
    const double share = (kfac::kLengthBound - 1) * weight;
    EXPECT_FALSE(cuts_growth(0.99 * share, along)) << along;
    EXPECT_TRUE(cuts_growth(1.2 * share, along)) << along;
  }
}

TEST(LengthBound, TurnsStepsTowardsTheGradientWhileItCutsThem) {
  double lengths[kfac::kLengths] = {};
  double factors[2];
  const auto cosine = [&](double length) {  // Of the step for V = (length, 0), U = (0.1, 1).
    const double products[2][3] = {{length * length, 1.01, 0.1 * length}, {}}, before[3] = {};
    kfac::store_length_factors(StepLength::gradient, products[0], before, lengths, factors);
    const double along = 0.1 * factors[0] + length * factors[1];
    return along / std::hypot(along, factors[0]);
  };
  const auto kept = [](double taken) {
    return kfac::kLeastCosine + (1 - kfac::kLeastCosine) * taken;
  };
  for (int i = 0; i < 20; ++i) EXPECT_NEAR(cosine(1), kept(0), 1e-14);  // A steady gradient.
  // One spike of 2.8, of which the bound leaves half: a tenth of what it takes, and forgotten.
  EXPECT_NEAR(cosine(2.8), kept(0.05), 1e-13);
  for (int i = 0; i < 60; ++i) (void)cosine(1);
  EXPECT_NEAR(cosine(1), kept(0), 1e-3);
  // A rise that lasts, of 5 % a step: the mean follows at 1.2 % at most.
  double length = 1, last = kept(0);
  for (int i = 0; i < 60; ++i) last = cosine(length *= 1.05);
  EXPECT_GT(last, 0.7);
  EXPECT_LT(last, 1);
}

TEST(LengthBound, LeavesOutALengthThatIsNone) {
  double lengths[kfac::kLengths] = {};
  for (const double length : {0., kInfinite, std::nan("")})
    EXPECT_EQ(kfac::bound_length(length, lengths), 1);
  EXPECT_EQ(lengths[kfac::kSteps], 0);
  EXPECT_EQ(lengths[kfac::kTaken], 0);
  EXPECT_EQ(kfac::bound_length(1e-3, lengths), 1);  // Not bounded by the zero before it.
  EXPECT_EQ(lengths[kfac::kMeanLength], 1e-3);
}

/// Gradients and directions of the covered layers after one step, weight and bias in one vector.
struct LengthStep {
  std::vector<std::vector<double>> gradients, directions;
};

/// A network and its preconditioner.
struct LengthRun {
  /// damping: 0 is a relative one.
  LengthRun(std::shared_ptr<comm::Communicator> comm, StepLength rule, double damping = 1e-2)
      : preconditioner(std::move(comm), options(rule, damping)) {
    for (auto& l : net.layers) {
      const auto view = [](std::vector<double>& v) {
        return v.empty() ? TensorView{} : view_of(v.data(), {static_cast<std::int64_t>(v.size())});
      };
      grads.push_back({preconditioner.add_layer(l.name, l.spec), view(l.dw), view(l.db)});
    }
    hooks.input = [this](int layer, ConstTensorView x) {
      preconditioner.record_input(grads[pos(layer)].layer, x);
    };
    hooks.grad_output = [this](int layer, ConstTensorView dy) {
      preconditioner.record_grad_output(grads[pos(layer)].layer, dy);
    };
    hooks.batch_norm = [this](int layer, ConstTensorView x, ConstTensorView mean,
                              ConstTensorView inv_std, ConstTensorView dy) {
      preconditioner.record_normalization(grads[pos(layer)].layer, x, mean, inv_std, dy);
    };
  }
  LengthRun(const LengthRun&) = delete;
  LengthRun& operator=(const LengthRun&) = delete;

  static kfac::CurvatureOptions options(StepLength rule, double damping) {
    kfac::CurvatureOptions options = natural_gradient();
    options.damping = damping;
    options.dtype = DType::f64;
    options.step_length = rule;
    return options;
  }

  LengthStep step(double loss_factor = 1) {
    net.forward(plain_batch<double>(0, 0, 12), hooks);  // The same on every rank.
    net.backward(loss_factor / 12, hooks);
    LengthStep result;
    read(result.gradients);
    preconditioner.step(grads);
    read(result.directions);
    return result;
  }

  void read(std::vector<std::vector<double>>& out) const {
    for (const auto& l : net.layers) {
      if (std::holds_alternative<PlainSpec>(l.spec)) continue;
      out.push_back(l.dw);
      out.back().insert(out.back().end(), l.db.begin(), l.db.end());
    }
  }

  kfac::Preconditioner preconditioner;
  PlainNet<double> net{3};
  std::vector<kfac::LayerGrad> grads;
  PlainHooks hooks;
};

LengthStep length_step(const std::shared_ptr<comm::Communicator>& comm, StepLength rule,
                       double loss_factor = 1) {
  return LengthRun(comm, rule).step(loss_factor);
}

double length_of(const std::vector<double>& x) { return std::sqrt(product(x, x)); }
double cosine_of(const std::vector<double>& x, const std::vector<double>& y) {
  return product(x, y) / (length_of(x) * length_of(y));
}

TEST(LayerLengths, GiveEachLayerTheStepOfItsRule) {
  const LengthStep free = length_step(comm::make_self(), StepLength::none);
  for (const StepLength rule : {StepLength::gradient, StepLength::projection})
    for (const int ranks : {1, 3})
      comm::run_ranks(ranks, [&](auto comm) {
        const LengthStep step = length_step(comm, rule);
        for (std::size_t l = 0; l < free.directions.size(); ++l) {
          const auto &u = free.directions[l], &v = free.gradients[l];
          const kfac::LengthFactors f =
              length_factors(rule, {.vv = product(v, v), .uu = product(u, u), .uv = product(u, v)},
                             kfac::kLeastCosine, kfac::length_exponent(1, 0));
          EXPECT_GT(std::abs(f.direction - 1), 0.1) << l;  // Otherwise nothing is shown.
          std::vector<double> expected = u;
          for (std::size_t i = 0; i < u.size(); ++i)
            expected[i] = f.direction * u[i] + f.gradient * v[i];
          // Sums of n products, and of three equal statistics where there are three ranks.
          const double tolerance = 1e4 * static_cast<double>(u.size()) * eps<double>;
          EXPECT_TRUE(near(step.directions[l], expected, tolerance)) << l;
        }
      });
}

TEST(LayerLengths, GrowWithTheLossAsItsGradientDoes) {
  // Alone, U would fall as the curvature grows with the square of the loss.
  const auto step = [](double loss_factor) {
    return LengthRun(comm::make_self(), StepLength::gradient, 0).step(loss_factor);
  };
  const LengthStep one = step(1), three = step(3);
  for (std::size_t l = 0; l < one.directions.size(); ++l)
    EXPECT_NEAR(std::sqrt(product(three.directions[l], three.directions[l])),
                3 * std::sqrt(product(one.directions[l], one.directions[l])), 1e-10);
}

TEST(LayerLengths, GrowByAFractionOfTheirMeanInAStep) {
  LengthRun run(comm::make_self(), StepLength::gradient);
  const LengthStep first = run.step(), second = run.step(100);
  const LengthStep free = length_step(comm::make_self(), StepLength::gradient, 100);
  for (std::size_t l = 0; l < first.directions.size(); ++l) {
    const auto &v = second.gradients[l], &u = second.directions[l];
    const double cosine = cosine_of(u, v);
    const double along = kfac::kTakenWeight * cosine_of(v, first.directions[l]);
    const double expected =
        1.4 * length_of(first.gradients[l]) * std::pow(cosine, kfac::length_exponent(2, along));
    EXPECT_NEAR(length_of(u), expected, 1e-10 * expected) << l;
    EXPECT_GT(length_of(free.directions[l]), 2 * length_of(u)) << l;  // A first step is free.
  }
}

TEST(LayerLengths, AreThoseOfProjectionsWhereGradientsOpposeTheStepsBeforeThem) {
  for (const int ranks : {1, 3})
    comm::run_ranks(ranks, [&](auto comm) {
      LengthRun run(comm, StepLength::gradient);
      for (int i = 0; i < 20; ++i) (void)run.step();
      const LengthStep same = run.step();
      for (int i = 0; i < 12; ++i) (void)run.step(i % 2 == 0 ? -1 : 1);  // Signs alternate.
      const LengthStep opposed = run.step(-1);
      for (std::size_t l = 0; l < same.directions.size(); ++l) {
        const auto share = [&](const LengthStep& step) {  // Of |V| that the length is.
          return length_of(step.directions[l]) / length_of(step.gradients[l]);
        };
        const auto cosine = [&](const LengthStep& step) {
          return cosine_of(step.directions[l], step.gradients[l]);
        };
        EXPECT_NEAR(share(same), 1 / std::sqrt(cosine(same)), 1e-9) << l;
        EXPECT_NEAR(share(opposed), cosine(opposed), 1e-9) << l;
        EXPECT_LT(cosine(opposed), 0.99) << l;  // Otherwise nothing is shown.
      }
    });
}

TEST(LayerLengths, AreRememberedByTheState) {
  LengthRun run(comm::make_self(), StepLength::gradient);
  (void)run.step();
  Saver saver;
  run.preconditioner.visit_state(saver);
  const auto directions = [](LengthRun& of) {  // Of growing gradients whose signs alternate.
    std::vector<std::vector<std::vector<double>>> all;
    for (int i = 0; i < 12; ++i) all.push_back(of.step(i % 2 == 0 ? 100 : -100).directions);
    return all;
  };
  const auto expected = directions(run);
  const auto resumed = [&](const SavedState& state) {
    LengthRun other(comm::make_self(), StepLength::gradient);
    const std::vector states{state};
    Loader loader(states, 0);
    other.preconditioner.visit_state(loader);
    return directions(other);
  };
  EXPECT_EQ(resumed(saver.state), expected);
  for (const char* what : {".lengths", ".last_step"}) {
    SavedState without = saver.state;
    for (auto& [name, value] : without)
      if (name.ends_with(what)) value.bytes.assign(value.bytes.size(), '\0');
    EXPECT_NE(resumed(without), expected) << what;
  }
}

TEST(LayerLengths, AreNotForAStepWithAKlClip) {
  kfac::CurvatureOptions options;
  options.kl_clip = 1e-3;
  EXPECT_NO_THROW(options.validate());
  options.step_length = StepLength::gradient;
  EXPECT_THROW(options.validate(), InvalidArgument);
}

}  // namespace
}  // namespace dkfac::testing
