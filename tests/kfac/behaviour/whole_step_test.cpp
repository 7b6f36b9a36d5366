#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/comm/in_process.h"
#include "dkfac/kfac/preconditioner.h"
#include "dkfac/optim/optimizer.h"

#include "support/fisher.h"
#include "support/natural_gradient.h"
#include "support/tiny_net.h"

// The exact cases of exactness_test.cpp through whole steps, as a training loop uses them:
// registration, statistics, their reduction, averages, inverses and the bias column.
namespace dkfac::testing {
namespace {

using namespace fisher;
using kfac::InverseMethod;

constexpr std::int64_t kIn = 5, kOut = 3, kSamples = 24;

/// [W | b] of least squares.
Matrix least_squares(const Matrix& x, const Matrix& targets) {
  const Matrix inputs = join_bias(x, Vector(static_cast<std::size_t>(x.rows), 1.0));
  return multiply(multiply(transpose(targets), inputs),
                  inverse(multiply(transpose(inputs), inputs)));
}

/// [W | b] after one step with rate 1. The statistics see unit vectors, which makes G the identity:
/// the true Fisher of squared loss.
Matrix one_step(const std::shared_ptr<comm::Communicator>& comm, InverseMethod method,
                double lambda, const Matrix& x, const Matrix& targets) {
  optim::KfacOptions options{.curvature = natural_gradient()};
  options.curvature.damping = lambda;
  options.curvature.dtype = DType::f64;
  options.curvature.inverse.method = method;
  options.curvature.statistics.new_weight = 1;
  options.curvature.loss_reduction = LossReduction::sum;
  options.momentum = 0;
  const auto optimizer = optim::make_kfac(comm, options);
  Random random(50);
  Matrix weight = random_matrix(kOut, kIn, random), weight_grad(kOut, kIn);
  Vector bias = random_vector(kOut, random), bias_grad(kOut);
  const auto fc = optimizer->add_layer("fc", LinearSpec{.in = kIn, .out = kOut},
                                       {weight.view(), view_of(bias.data(), {kOut}),
                                        weight_grad.view(), view_of(bias_grad.data(), {kOut})});
  optimizer->prepare();
  const std::int64_t n = kSamples / comm->size(), first = comm->rank() * n;
  Matrix inputs(n, kIn), labels(n, kOut);
  for (std::int64_t s = 0; s < n; ++s) {
    labels(s, s % kOut) = std::sqrt(static_cast<double>(kOut));
    for (std::int64_t i = 0; i < kIn; ++i) inputs(s, i) = x(first + s, i);
    for (std::int64_t o = 0; o < kOut; ++o) {
      double residual = bias[static_cast<std::size_t>(o)] - targets(first + s, o);
      for (std::int64_t i = 0; i < kIn; ++i) residual += weight(o, i) * inputs(s, i);
      for (std::int64_t i = 0; i < kIn; ++i) weight_grad(o, i) += residual * inputs(s, i);
      bias_grad[static_cast<std::size_t>(o)] += residual;
    }
  }
  const RecordScale scale{1, kSamples};
  optimizer->record_input(fc, inputs.view(), Stream::cpu(), scale);
  optimizer->record_grad_output(fc, labels.view(), Stream::cpu(), scale);
  optimizer->grads_ready(fc, Stream::cpu(), scale);
  EXPECT_TRUE(optimizer->step({.lr = 1, .flags = {}}, Stream::cpu()).updated);
  return join_bias(weight, bias);
}

TEST(WholeStep, E1SolvesALinearRegressionOnAnyNumberOfRanks) {
  Random random(51);
  const Matrix x = random_matrix(kSamples, kIn, random);
  const Matrix targets = random_matrix(kSamples, kOut, random);
  const Matrix expected = least_squares(x, targets);
  for (const int ranks : {1, 2, 4})
    comm::run_ranks(ranks, [&](const std::shared_ptr<comm::Communicator>& comm) {
      const auto error = [&](InverseMethod method, double lambda) {
        return relative_norm(one_step(comm, method, lambda, x, targets).v, expected.v);
      };
      EXPECT_LE(error(InverseMethod::cholesky, 1e-20), 1e-8) << ranks;
      EXPECT_LE(error(InverseMethod::eigen, 1e-12), 1e-8) << ranks;
      EXPECT_GT(error(InverseMethod::cholesky, 0.1), 0.01);  // Control: damped.
    });
}

/// The library's direction for one random gradient [dW | db] per layer. EKFAC computes its scales
/// in the basis of the previous step, so the same records are made twice.
std::vector<Matrix> directions(const std::vector<LayerRecord>& layers, std::int64_t samples,
                               InverseMethod method, double lambda,
                               const std::vector<Matrix>& gradients) {
  kfac::CurvatureOptions options = natural_gradient();
  options.damping = lambda;
  options.dtype = DType::f64;
  options.inverse.method = method;
  options.refresh.inverse_interval = 10;
  options.loss_reduction = LossReduction::sum;
  kfac::Preconditioner preconditioner(comm::make_self(), options);
  std::vector<LayerId> ids;
  std::vector<Matrix> inputs;  // One row for each label of a sample, as the gradients have.
  for (const LayerRecord& layer : layers) {
    ids.push_back(
        preconditioner.add_layer("fc" + std::to_string(ids.size()),
                                 LinearSpec{.in = layer.inputs.cols, .out = layer.gradients.cols}));
    Matrix repeated(layer.gradients.rows, layer.inputs.cols);
    for (std::int64_t r = 0; r < repeated.rows; ++r)
      for (std::int64_t c = 0; c < repeated.cols; ++c)
        repeated(r, c) = layer.inputs(r * samples / repeated.rows, c);
    inputs.push_back(repeated);
  }
  std::vector<std::pair<Matrix, Vector>> parts;
  for (int step = 0; step < 2; ++step) {
    for (std::size_t l = 0; l < layers.size(); ++l)
      preconditioner.record_input(ids[l], inputs[l].view(), Stream::cpu(), {1, inputs[l].rows});
    for (std::size_t l = layers.size(); l-- > 0;)
      preconditioner.record_grad_output(ids[l], layers[l].gradients.view(), Stream::cpu(),
                                        {1, samples});
    parts.clear();
    for (const Matrix& gradient : gradients) parts.push_back(split_bias(gradient));
    std::vector<kfac::LayerGrad> grads;
    for (std::size_t l = 0; l < layers.size(); ++l)
      grads.push_back({ids[l], parts[l].first.view(),
                       view_of(parts[l].second.data(), {layers[l].gradients.cols})});
    EXPECT_TRUE(preconditioner.step(grads).updated);
  }
  std::vector<Matrix> all;
  for (const auto& [weight, bias] : parts) all.push_back(join_bias(weight, bias));
  return all;
}

std::vector<Matrix> random_gradients(const TinyNet& net) {
  Random random(52);
  std::vector<Matrix> all;
  for (const Matrix& w : net.weights) all.push_back(random_matrix(w.rows, w.cols, random));
  return all;
}

/// From the directions that a dense solve with the explicit Fisher gives: the largest over layers.
double distance_to_dense(const TinyNet& net, const Matrix& x, Loss loss, InverseMethod method,
                         double lambda) {
  const std::vector<LayerRecord> layers = record(net, x, loss);
  const std::vector<Matrix> gradients = random_gradients(net);
  const std::vector<Matrix> found = directions(layers, x.rows, method, lambda, gradients);
  double worst = 0;
  for (std::size_t l = 0; l < layers.size(); ++l) {
    const Vector expected = solve(plus_diagonal(layers[l].fisher, lambda), gradients[l].v);
    worst = std::max(worst, relative_norm(found[l].v, expected));
  }
  return worst;
}

constexpr InverseMethod kExactDamping[] = {InverseMethod::eigen, InverseMethod::ekfac};

TEST(WholeStep, E3OneSampleIsSolvedExactlyInEveryLayer) {
  Random random(53);
  for (const Activation activation : {Activation::relu, Activation::tanh})
    for (const Loss loss : {Loss::squared, Loss::softmax}) {
      const TinyNet net = TinyNet::random({4, 7, 6, 3}, activation, random);
      const Matrix x = random_matrix(1, 4, random);
      for (const InverseMethod method : kExactDamping)
        EXPECT_LE(distance_to_dense(net, x, loss, method, 0.1), 1e-11);
    }
}

TEST(WholeStep, E3nAReluNetIsNotSolvedExactlyForABatch) {
  Random random(54);
  const TinyNet net = TinyNet::random({4, 7, 6, 3}, Activation::relu, random, 2);
  const Matrix x = random_matrix(16, 4, random);
  for (const InverseMethod method : kExactDamping)
    EXPECT_GT(distance_to_dense(net, x, Loss::softmax, method, 0.01), 0.05);
  // And EKFAC is then something else.
  const std::vector<LayerRecord> layers = record(net, x, Loss::softmax);
  const std::vector<Matrix> gradients = random_gradients(net);
  EXPECT_GT(relative_norm(directions(layers, x.rows, InverseMethod::ekfac, 0.01, gradients)[0].v,
                          directions(layers, x.rows, InverseMethod::eigen, 0.01, gradients)[0].v),
            0.01);
}

TEST(WholeStep, E4ADeepLinearNetIsSolvedExactlyAtAnyBatch) {
  Random random(55);
  const TinyNet net = TinyNet::random({3, 5, 4, 2}, Activation::linear, random);
  const Matrix x = random_matrix(17, 3, random);
  for (const double lambda : {1e-3, 0.1, 10.0})
    for (const InverseMethod method : kExactDamping)
      EXPECT_LE(distance_to_dense(net, x, Loss::squared, method, lambda), 1e-11);
  // Control: damping of the factors is not exact in between.
  EXPECT_GT(distance_to_dense(net, x, Loss::squared, InverseMethod::cholesky, 0.1), 0.01);
}

}  // namespace
}  // namespace dkfac::testing
