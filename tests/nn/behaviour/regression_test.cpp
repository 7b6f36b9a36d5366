// The Fisher of a regression with Gaussian errors of unit variance: the Gauss-Newton matrix
// J' J of its squared error, by finite differences of the outputs.

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "dkfac/comm/communicator.h"
#include "dkfac/comm/in_process.h"
#include "dkfac/core/ops.h"
#include "dkfac/nn/curvature.h"
#include "dkfac/nn/kfac_attach.h"
#include "dkfac/nn/loss.h"
#include "dkfac/nn/model.h"

#include "nn/nn_support.h"
#include "support/both_backends.h"
#include "support/fisher.h"
#include "support/natural_gradient.h"

namespace dkfac::nn {
namespace {

using namespace dkfac::testing;
using fisher::Matrix;
using fisher::Vector;

constexpr std::int64_t kFeatures = 4, kUnits = 5, kOut = 3, kPoints = 6;

std::unique_ptr<Model> regression_net(Context& ctx) {
  auto net = std::make_unique<Sequential>();
  net->add<Linear>("fc1", kFeatures, kUnits).add<Relu>("relu").add<Linear>("fc2", kUnits, kOut);
  return std::make_unique<Model>(ctx, "small", std::move(net), Shape{kFeatures}, DType::f64, 3);
}

Tensor point(Context& ctx, std::int64_t i) {
  return random_tensor(ctx, Shape{1, kFeatures}, DType::f64, 30 + static_cast<std::uint64_t>(i), -2,
                       2);
}

/// d outputs / d parameters at one input, [kOut, parameters], by central differences. The network
/// is linear in each parameter up to the kinks of ReLU, so their only error is rounding.
Matrix jacobian(Context& ctx, Model& model, ConstTensorView x) {
  constexpr double kStep = 1e-3;
  const std::int64_t size = model.parameter_count();
  Matrix j(kOut, size);
  for (std::int64_t p = 0; p < size; ++p) {
    double& parameter = model.parameters().data<double>()[p];
    const double before = parameter;
    parameter = before + kStep;
    const Vector above = values(ctx, model.forward(ctx, x, Mode::eval));
    parameter = before - kStep;
    const Vector below = values(ctx, model.forward(ctx, x, Mode::eval));
    parameter = before;
    for (std::int64_t k = 0; k < kOut; ++k) {
      const auto at = static_cast<std::size_t>(k);
      j(k, p) = (above[at] - below[at]) / (2 * kStep);
    }
  }
  return j;
}

/// Gradient of the squared error of one sample, [parameters].
Vector squared_gradient(Context& ctx, Model& model, ConstTensorView x, const Tensor& targets) {
  const ConstTensorView y = model.forward(ctx, x, Mode::train);
  Tensor grad = Tensor::empty(ctx, y.shape(), DType::f64);
  double loss = 0;
  squared_error(ctx, y, targets, 1, grad, view_of(&loss, Shape{1}));
  model.backward(ctx, grad);
  return values(ctx, model.gradients());
}

Tensor outputs_of(Context& ctx, Model& model, ConstTensorView x) {
  return Tensor::copy_of(ctx, model.forward(ctx, x, Mode::eval));
}

class RegressionFisher : public BothBackends {};
DKFAC_BOTH_BACKENDS(RegressionFisher);

// The points y +- sqrt(m) e_k with equal weights have the mean and the covariance of N(y, I), and
// the outer product of gradients is quadratic in the target: their mean over them is the Fisher.
TEST_P(RegressionFisher, IsTheGaussNewtonMatrix) {
  const auto model = regression_net(ctx);
  const std::int64_t size = model->parameter_count();
  Matrix fisher(size, size), newton(size, size), empirical(size, size);
  for (std::int64_t i = 0; i < kPoints; ++i) {
    const Tensor x = point(ctx, i);
    const Tensor y = outputs_of(ctx, *model, x);
    for (std::int64_t k = 0; k < kOut; ++k)
      for (const double sign : {-1.0, 1.0}) {
        Tensor target = Tensor::copy_of(ctx, y);
        target.data<double>()[k] += sign * std::sqrt(static_cast<double>(kOut));
        fisher::add_outer(fisher, squared_gradient(ctx, *model, x, target),
                          1.0 / (2 * kOut * kPoints));
      }
    const Matrix j = jacobian(ctx, *model, x);
    for (std::int64_t k = 0; k < kOut; ++k) fisher::add_outer(newton, j.row(k), 1.0 / kPoints);
    const Tensor given = random_tensor(ctx, Shape{1, kOut}, DType::f64, 90);
    fisher::add_outer(empirical, squared_gradient(ctx, *model, x, given), 1.0 / kPoints);
  }
  // Differences of step 1e-3 lose three digits: c*n*eps with n = 1e3 and c = 1e2.
  EXPECT_LE(fisher::relative_norm(fisher.v, newton.v), 1e5 * eps<double>);
  // Negative control: the empirical Fisher, from the residuals, is another matrix.
  EXPECT_GT(fisher::relative_norm(empirical.v, newton.v), 0.1);
}

// Of one drawn sample g = J' e with e from N(0, I), E |g g' - F|^2 = tr(M)^2 + tr(M^2), M = J J'.
// The mean over n samples has a squared error of a n-th of that. 400 estimates leave a relative
// deviation of at most sqrt(2/400) = 0.07, of which 0.35 is five.
TEST_P(RegressionFisher, IsWhatDrawnTargetsTendTo) {
  constexpr int kEstimates = 400;
  constexpr std::int64_t kDraws = 20;
  const auto model = regression_net(ctx);
  const std::int64_t size = model->parameter_count();
  const Tensor x = point(ctx, 0);
  const Tensor y = outputs_of(ctx, *model, x);
  const Matrix j = jacobian(ctx, *model, x);
  const Matrix newton = fisher::multiply(fisher::transpose(j), j);
  const Matrix m = fisher::multiply(j, fisher::transpose(j));
  double trace = 0, squares = 0;
  for (std::int64_t k = 0; k < kOut; ++k) trace += m(k, k);
  for (const double e : m.v) squares += e * e;
  /// Ratio of the mean squared error to the closed form, for errors of another deviation.
  const auto error_of = [&](double deviation) {
    double error = 0;
    for (int step = 0; step < kEstimates; ++step) {
      Matrix estimate(size, size);
      for (std::int64_t draw = 0; draw < kDraws; ++draw) {
        Tensor target = Tensor::empty(ctx, y.shape(), DType::f64);
        sample_targets(ctx, y, {.seed = 5, .step = step, .first = draw}, target);
        ops::axpby(ctx, 1 - deviation, y, deviation, target);
        fisher::add_outer(estimate, squared_gradient(ctx, *model, x, target), 1.0 / kDraws);
      }
      for (std::size_t e = 0; e < newton.v.size(); ++e)
        error += std::pow(estimate.v[e] - newton.v[e], 2) / kEstimates;
    }
    return error / ((trace * trace + squares) / kDraws);
  };
  EXPECT_NEAR(error_of(1), 1, 0.35);
  EXPECT_GT(error_of(1.5), 2) << "negative control: another variance";
}

/// Inputs [n, kFeatures] and targets [n, kOut] of a linear regression.
struct Regression {
  Tensor x, t;
};
Regression regression(Context& ctx) {
  const std::int64_t samples = 24;
  return {random_tensor(ctx, Shape{samples, kFeatures}, DType::f64, 7),
          random_tensor(ctx, Shape{samples, kOut}, DType::f64, 8)};
}

enum class Statistics { model, residual };

struct OneStep {
  double gradient;  ///< The largest element of the gradient after the step.
  double rate;      ///< StepReport::model_rate
};
/// A step of K-FAC at rate 1. Statistics::model: the targets of the statistics are y + sqrt(m) e_k
/// for sample i with k = i mod m, so that G is the identity.
OneStep a_step_of_kfac(Context& ctx, const Regression& data, Statistics kind,
                       const kfac::CurvatureOptions& curvature) {
  auto net = std::make_unique<Sequential>();
  net->add<Linear>("fc", kFeatures, kOut);
  Model model(ctx, "linear", std::move(net), Shape{kFeatures}, DType::f64, 3);
  const auto optimizer = optim::make_kfac(comm::make_self(), {.curvature = curvature});
  OptimizerAttachment attachment(model, *optimizer);
  const std::int64_t n = data.x.view().dim(0);
  attachment.set_scale({.global_batch = n});
  optimizer->prepare();
  const double scale = 1.0 / static_cast<double>(n);
  Tensor grad = Tensor::empty(ctx, data.t.shape(), DType::f64);
  double ignored = 0;
  const TensorView sum = view_of(&ignored, Shape{1});

  attachment.set_pass({.statistics = true, .gradients = GradientUse::none});
  const ConstTensorView y = model.forward(ctx, data.x, Mode::train);
  Tensor targets = Tensor::copy_of(ctx, kind == Statistics::model ? y : data.t.view());
  if (kind == Statistics::model)
    for (std::int64_t i = 0; i < n; ++i)
      targets.data<double>()[i * kOut + i % kOut] += std::sqrt(static_cast<double>(kOut));
  squared_error(ctx, y, targets, scale, grad, sum);
  model.backward(ctx, grad);
  attachment.set_pass({.statistics = false, .gradients = GradientUse::announce});
  squared_error(ctx, y, data.t, scale, grad, sum);
  model.backward(ctx, grad);
  attachment.set_model_batch(data.x, squared_curvature);
  const kfac::StepReport report = optimizer->step({.lr = 1});
  EXPECT_TRUE(report.updated);

  squared_error(ctx, model.forward(ctx, data.x, Mode::train), data.t, scale, grad, sum);
  model.backward(ctx, grad);
  const Vector g = values(ctx, model.gradients());
  const auto smaller = [](double a, double b) { return std::abs(a) < std::abs(b); };
  return {*std::max_element(g.begin(), g.end(), smaller), report.model_rate};
}

kfac::CurvatureOptions exact_curvature(double damping) {
  kfac::CurvatureOptions options = natural_gradient();
  options.dtype = DType::f64;
  options.damping = damping;
  return options;
}

// A (x) I is the Hessian of a linear regression, so a step of rate 1 ends where the gradient is 0.
TEST_P(RegressionFisher, SolvesALinearRegressionInOneStepOfKfac) {
  const Regression data = regression(ctx);
  const kfac::CurvatureOptions curvature = exact_curvature(1e-20);
  // The damping adds sqrt(1e-20) to the eigenvalues of each factor, which are above 0.01.
  EXPECT_LE(std::abs(a_step_of_kfac(ctx, data, Statistics::model, curvature).gradient), 1e-8);
  // Negative control: the statistics of the residuals give another step.
  EXPECT_GT(std::abs(a_step_of_kfac(ctx, data, Statistics::residual, curvature).gradient), 1e-3);
}

// ... and with damping, the minimum of the damped model.
TEST_P(RegressionFisher, HasRateOneInTheQuadraticModel) {
  const Regression data = regression(ctx);
  kfac::CurvatureOptions curvature = exact_curvature(0.1);
  curvature.step_length = kfac::StepLength::quadratic;
  const auto rate = [&](Statistics kind) {
    return a_step_of_kfac(ctx, data, kind, curvature).rate;
  };
  EXPECT_GT(std::abs(rate(Statistics::model) - 1), 1e-3);  // The damping is split between factors.
  curvature.inverse.method = kfac::InverseMethod::eigen;
  EXPECT_NEAR(rate(Statistics::model), 1, 1e-12);  // 100 * n * eps, n = 24 samples.
  EXPECT_GT(std::abs(rate(Statistics::residual) - 1), 0.01);
}

// curvature_along() is d' F d, F = J' J.
TEST_P(RegressionFisher, IsThatOfTangents) {
  const auto model = regression_net(ctx);
  const std::int64_t size = model->parameter_count();
  const Tensor x = random_tensor(ctx, Shape{kPoints, kFeatures}, DType::f64, 40);
  std::vector<Tensor> directions;
  for (const std::uint64_t seed : {50U, 51U, 52U})
    directions.push_back(random_tensor(ctx, Shape{size}, DType::f64, seed));
  const std::vector<ConstTensorView> views(directions.begin(), directions.end());
  Vector sums(6), wanted(6);
  curvature_along(ctx, *model, x, squared_curvature, views, view_of(sums.data(), Shape{6}));
  for (std::int64_t n = 0; n < kPoints; ++n) {
    const Matrix j = jacobian(ctx, *model, x.view().slice(0, n, 1));
    const auto tangent = [&](std::size_t i, std::int64_t k) {
      double sum = 0;
      for (std::int64_t p = 0; p < size; ++p) sum += j(k, p) * directions[i].data<double>()[p];
      return sum;
    };
    std::size_t pair = 0;
    for (std::size_t i = 0; i < 3; ++i)
      for (std::size_t l = 0; l <= i; ++l, ++pair)
        for (std::int64_t k = 0; k < kOut; ++k) wanted[pair] += tangent(i, k) * tangent(l, k);
  }
  EXPECT_TRUE(near(sums, wanted, 1e5 * eps<double>));  // As above.
  const std::vector<ConstTensorView> swapped{views[1], views[0], views[2]};
  curvature_along(ctx, *model, x, squared_curvature, swapped, view_of(sums.data(), Shape{6}));
  EXPECT_FALSE(near(sums, wanted, 1e-3));
}

}  // namespace
}  // namespace dkfac::nn
