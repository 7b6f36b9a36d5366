#include "kfac/precondition/step_length.h"

#include <cmath>
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

double product(const std::vector<double>& x, const std::vector<double>& y) {
  double sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) sum += x[i] * y[i];
  return sum;
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
  for (const StepLength rule : {StepLength::gradient, StepLength::projection, StepLength::gradual})
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
