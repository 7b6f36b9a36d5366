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

namespace dkfac::testing {
namespace {

using kfac::length_factor;
using kfac::StepLength;

constexpr double kInfinite = std::numeric_limits<double>::infinity();

double product(const std::vector<double>& x, const std::vector<double>& y) {
  double sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) sum += x[i] * y[i];
  return sum;
}

TEST(LengthFactor, IsTheFormula) {
  EXPECT_DOUBLE_EQ(length_factor(StepLength::gradient, {.vv = 4, .uu = 16, .uv = 2}), 0.5);
  EXPECT_DOUBLE_EQ(length_factor(StepLength::projection, {.vv = 4, .uu = 16, .uv = 2}), 0.125);
}

TEST(LengthFactor, LeavesTheGradientWhereADirectionHasNoUsableLength) {
  for (const StepLength rule : {StepLength::gradient, StepLength::projection}) {
    EXPECT_EQ(length_factor(rule, {.vv = 1, .uu = 0, .uv = 0}), 0);
    EXPECT_EQ(length_factor(rule, {.vv = 1, .uu = kInfinite, .uv = 1}), 0);
    EXPECT_EQ(length_factor(rule, {.vv = 1, .uu = std::nan(""), .uv = 1}), 0);
    EXPECT_EQ(length_factor(rule, {.vv = std::nan(""), .uu = 1, .uv = std::nan("")}), 0);
  }
  EXPECT_EQ(length_factor(StepLength::projection, {.vv = 1, .uu = 1, .uv = -1}), 0);
}

/// Gradients and directions of the covered layers after one step, weight and bias in one vector.
struct LengthStep {
  std::vector<std::vector<double>> gradients, directions;
};

LengthStep length_step(const std::shared_ptr<comm::Communicator>& comm, StepLength rule,
                       double loss_factor = 1) {
  kfac::CurvatureOptions options = natural_gradient();
  options.damping = 1e-2;
  options.dtype = DType::f64;
  options.step_length = rule;
  kfac::Preconditioner preconditioner(comm, options);
  PlainNet<double> net(3);
  std::vector<kfac::LayerGrad> grads;
  for (auto& l : net.layers) {
    const auto view = [](std::vector<double>& v) {
      return v.empty() ? TensorView{} : view_of(v.data(), {static_cast<std::int64_t>(v.size())});
    };
    grads.push_back({preconditioner.add_layer(l.name, l.spec), view(l.dw), view(l.db)});
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
  net.backward(loss_factor / 12, hooks);
  LengthStep result;
  const auto read = [&](std::vector<std::vector<double>>& out) {
    for (const auto& l : net.layers) {
      if (std::holds_alternative<PlainSpec>(l.spec)) continue;
      out.push_back(l.dw);
      out.back().insert(out.back().end(), l.db.begin(), l.db.end());
    }
  };
  read(result.gradients);
  preconditioner.step(grads);
  read(result.directions);
  return result;
}

TEST(LayerLengths, GiveEachLayerTheLengthOfItsGradientAndKeepItsDirection) {
  const LengthStep free = length_step(comm::make_self(), StepLength::none);
  for (const StepLength rule : {StepLength::gradient, StepLength::projection})
    for (const int ranks : {1, 3})
      comm::run_ranks(ranks, [&](auto comm) {
        const LengthStep step = length_step(comm, rule);
        for (std::size_t l = 0; l < free.directions.size(); ++l) {
          const auto &u = free.directions[l], &v = free.gradients[l];
          const double uu = product(u, u), vv = product(v, v), uv = product(u, v);
          const double s = rule == StepLength::gradient ? std::sqrt(vv / uu) : uv / uu;
          EXPECT_GT(std::abs(s - 1), 0.1) << l;  // Otherwise nothing is shown.
          std::vector<double> expected = u;
          for (double& x : expected) x *= s;
          // Sums of n products, and of three equal statistics where there are three ranks.
          const double tolerance = 1e4 * static_cast<double>(u.size()) * eps<double>;
          EXPECT_TRUE(near(step.directions[l], expected, tolerance)) << l;
        }
      });
}

TEST(LayerLengths, GrowWithTheLossAsItsGradientDoes) {
  // Alone, U would fall as the curvature grows with the square of the loss.
  const LengthStep one = length_step(comm::make_self(), StepLength::gradient);
  const LengthStep three = length_step(comm::make_self(), StepLength::gradient, 3);
  for (std::size_t l = 0; l < one.directions.size(); ++l)
    EXPECT_NEAR(std::sqrt(product(three.directions[l], three.directions[l])),
                3 * std::sqrt(product(one.directions[l], one.directions[l])), 1e-10);
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
