#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/kfac/inverse.h"
#include "dkfac/kfac/statistics.h"

#include "support/both_backends.h"
#include "support/damped_solve.h"
#include "support/fisher.h"
#include "support/naive_conv.h"
#include "support/near.h"
#include "support/tiny_net.h"

/// K-FAC against the Fisher matrix it approximates, where theory says that the two are equal; and
/// where they are not, as a proof that the comparison can fail.
namespace dkfac::kfac {
namespace {

using namespace testing::fisher;
using testing::BothBackends;
using testing::near;

class Exactness : public BothBackends {
 protected:
  /// G (x) A of a linear layer with a bias, from what a batch of n samples left in it.
  Matrix block(const Matrix& inputs, const Matrix& gradients) {
    const Factors f = factors(inputs, gradients);
    return kronecker(f.g, f.a);
  }
  Factors factors(const Matrix& inputs, const Matrix& gradients) {
    return compute_factors(ctx, LinearSpec{inputs.cols, gradients.cols, true}, inputs.view(),
                           gradients.view(), inputs.rows);
  }
  /// Relative distance between the block and the explicit Fisher, per layer.
  std::vector<double> errors(const TinyNet& net, const Matrix& x, Loss loss) {
    std::vector<double> out;
    for (const LayerRecord& layer : record(net, x, loss)) {
      out.push_back(relative_norm(block(layer.inputs, layer.gradients).v, layer.fisher.v));
    }
    return out;
  }
};
DKFAC_BOTH_BACKENDS(Exactness);

TEST_P(Exactness, LinearRegressionIsExactAtAnyBatch) {
  Random random(1);
  for (const std::int64_t n : {1, 2, 50}) {
    const TinyNet net = TinyNet::random({5, 3}, Activation::linear, random);
    const Matrix x = random_matrix(n, 5, random);
    EXPECT_LE(errors(net, x, Loss::squared)[0], 1e-12) << n;
    const LayerRecord layer = record(net, x, Loss::squared)[0];
    EXPECT_TRUE(near(factors(layer.inputs, layer.gradients).g.v, identity(3).v, 1e-12));
  }
}

TEST_P(Exactness, OneStepSolvesALinearRegression) {
  Random random(2);
  const Matrix x = random_matrix(40, 5, random), targets = random_matrix(40, 3, random);
  const TinyNet net = TinyNet::random({5, 3}, Activation::linear, random);
  const LayerRecord layer = record(net, x, Loss::squared)[0];
  const Matrix inputs = join_bias(x, Vector(40, 1.0));
  const Matrix residual_sign = multiply(inputs, transpose(net.weights[0]));
  Matrix gradient(3, 6), right(3, 6);
  for (std::int64_t n = 0; n < 40; ++n) {
    for (std::int64_t o = 0; o < 3; ++o) {
      for (std::int64_t i = 0; i < 6; ++i) {
        gradient(o, i) += (residual_sign(n, o) - targets(n, o)) * inputs(n, i) / 40;
        right(o, i) += targets(n, o) * inputs(n, i) / 40;
      }
    }
  }
  const Matrix least_squares = multiply(right, inverse(second_moment(inputs, 40)));
  const Factors f = factors(layer.inputs, layer.gradients);
  for (const Matrix& step :
       {solve_pi(ctx, f, gradient, 1e-20), solve_eigen(ctx, f, gradient, 1e-12)}) {
    Matrix updated = net.weights[0];
    for (std::size_t i = 0; i < updated.v.size(); ++i) updated.v[i] -= step.v[i];
    EXPECT_LE(relative_norm(updated.v, least_squares.v), 1e-8);
  }
  // Control: with damping the step stops short.
  Matrix damped = net.weights[0];
  const Matrix step = solve_pi(ctx, f, gradient, 0.1);
  for (std::size_t i = 0; i < damped.v.size(); ++i) damped.v[i] -= step.v[i];
  EXPECT_GT(relative_norm(damped.v, least_squares.v), 0.01);
}

TEST_P(Exactness, SoftmaxRegressionIsExactAtZeroWeightsOnly) {
  Random random(3);
  TinyNet net = TinyNet::random({4, 3}, Activation::linear, random);
  const Matrix x = random_matrix(20, 4, random);
  EXPECT_GT(errors(net, x, Loss::softmax)[0], 0.01);
  net.weights[0] = Matrix(3, 5);
  EXPECT_LE(errors(net, x, Loss::softmax)[0], 1e-12);
}

TEST_P(Exactness, OneSampleIsExactInEveryLayer) {
  Random random(4);
  for (const Activation activation : {Activation::linear, Activation::relu, Activation::tanh}) {
    for (const Loss loss : {Loss::squared, Loss::softmax}) {
      const TinyNet net = TinyNet::random({4, 12, 10, 3}, activation, random);
      const Matrix x = random_matrix(1, 4, random);
      for (const double error : errors(net, x, loss)) EXPECT_LE(error, 1e-12);
    }
  }
}

TEST_P(Exactness, OneSampleIsExactForTheEmpiricalFisher) {
  Random random(5);
  const TinyNet net = TinyNet::random({4, 6, 3}, Activation::tanh, random);
  const std::vector<Vector> inputs = net.forward(random_vector(4, random));
  Vector delta = softmax(inputs.back());
  delta[1] -= 1;  // its label
  for (const Trace& trace : net.backward(inputs, delta)) {
    const auto width = static_cast<std::int64_t>(trace.a.size()) - 1;
    Matrix a(1, width), g(1, static_cast<std::int64_t>(trace.g.size()));
    std::copy_n(trace.a.begin(), width, a.v.begin());
    g.v = trace.g;
    const Vector gradient = outer(trace.g, trace.a);
    Matrix expected(a.rows * g.cols * (width + 1), g.cols * (width + 1));
    add_outer(expected, gradient, 1);
    EXPECT_LE(relative_norm(block(a, g).v, expected.v), 1e-12);
  }
}

TEST_P(Exactness, AReluNetIsNotExactForABatch) {
  Random random(6);
  const TinyNet net = TinyNet::random({4, 6, 3}, Activation::relu, random, 2);
  for (const std::int64_t n : {2, 16}) {
    const Matrix x = random_matrix(n, 4, random);
    for (const double error : errors(net, x, Loss::softmax)) EXPECT_GT(error, 0.1) << n;
  }
}

TEST_P(Exactness, ADeepLinearNetIsExactInEveryLayer) {
  Random random(7);
  const TinyNet net = TinyNet::random({3, 5, 4, 2}, Activation::linear, random);
  const Matrix x = random_matrix(17, 3, random);
  for (const double error : errors(net, x, Loss::squared)) EXPECT_LE(error, 1e-12);
}

/// Explicit Fisher of a convolution: a sample's gradient is the sum over its positions of g a'.
Matrix explicit_conv_fisher(const Matrix& patches, const Matrix& gradients, std::int64_t n) {
  const std::int64_t positions = patches.rows / n, d = patches.cols * gradients.cols;
  Matrix fisher(d, d);
  for (std::int64_t sample = 0; sample < n; ++sample) {
    Vector gradient(static_cast<std::size_t>(d));
    for (std::int64_t p = sample * positions; p < (sample + 1) * positions; ++p) {
      const Vector part = outer(gradients.row(p), patches.row(p));
      for (std::size_t i = 0; i < part.size(); ++i) gradient[i] += part[i];
    }
    add_outer(fisher, gradient, 1 / static_cast<double>(n));
  }
  return fisher;
}

TEST_P(Exactness, AConvolutionWithOnePositionIsALinearLayer) {
  Random random(8);
  for (const Layout layout : {Layout::nhwc, Layout::nchw}) {
    const Conv2dSpec conv{
        .in = 2, .out = 3, .window = {.kernel_h = 3, .kernel_w = 2}, .layout = layout};
    const Images in{1, 3, 2};
    // The kernel covers the image, so a patch is the image as stored in memory.
    const Vector x = random_vector(12, random), dy = random_vector(3, random);
    const Factors f =
        compute_factors(ctx, conv, view_of(x.data(), activation_shape(layout, in, 2)),
                        view_of(dy.data(), activation_shape(layout, {1, 1, 1}, 3)), 1);
    const Factors dense = compute_factors(ctx, LinearSpec{12, 3, true}, view_of(x.data(), {1, 12}),
                                          view_of(dy.data(), {1, 3}), 1);
    EXPECT_TRUE(near(f.a.v, dense.a.v, 1e-12));
    EXPECT_TRUE(near(f.g.v, dense.g.v, 1e-12));
    const Matrix patches = naive_patches(conv, in, x, layout);
    Matrix gradients(1, 3);
    gradients.v = dy;
    EXPECT_LE(relative_norm(kronecker(f.g, f.a).v, explicit_conv_fisher(patches, gradients, 1).v),
              1e-12);
  }
}

TEST_P(Exactness, AConvolutionWithNinePositionsIsNotExact) {
  Random random(9);
  const Conv2dSpec conv{.in = 2, .out = 3, .window = Window::square(3)};
  const Images in{4, 5, 5}, out = output_of(conv, in);
  const Vector x = random_vector(4 * 25 * 2, random), dy = random_vector(4 * 9 * 3, random);
  const Factors f = compute_factors(ctx, conv, view_of(x.data(), {4, 5, 5, 2}),
                                    view_of(dy.data(), {4, 3, 3, 3}), 4);
  const Matrix patches = naive_patches(conv, in, x, Layout::nhwc);
  const Matrix gradients = naive_positions(conv, out, dy);
  const Matrix explicit_fisher = explicit_conv_fisher(patches, gradients, 4);
  EXPECT_GT(relative_norm(kronecker(f.g, f.a).v, explicit_fisher.v), 0.1);
  // But it equals its own definition: A averages over positions, G sums.
  EXPECT_TRUE(near(f.a.v, second_moment(patches, 4 * 9).v, 1e-12));
  EXPECT_TRUE(near(f.g.v, second_moment(gradients, 4).v, 1e-12));
}

TEST_P(Exactness, EigenPathSolvesTheDampedKroneckerProduct) {
  Random random(10);
  const Factors f{random_spd(5, random, 0.05), random_spd(4, random, 0.05)};
  const Matrix v = random_matrix(4, 5, random), product = kronecker(f.g, f.a);
  for (double lambda = 1e-8; lambda < 2e6; lambda *= 10) {
    const Vector expected = solve(plus_diagonal(product, lambda), v.v);
    EXPECT_LE(relative_norm(solve_eigen(ctx, f, v, lambda).v, expected), 1e-11) << lambda;
  }
}

TEST_P(Exactness, PiPathSolvesItsOwnDefinition) {
  Random random(11);
  const Factors f{random_spd(5, random, 0.05), random_spd(4, random, 0.3)};
  const Matrix v = random_matrix(4, 5, random);
  const double pi = std::sqrt((trace(f.a) / 5) / (trace(f.g) / 4));
  for (double lambda = 1e-8; lambda < 2e6; lambda *= 10) {
    const Matrix damped = kronecker(plus_diagonal(f.g, std::sqrt(lambda) / pi),
                                    plus_diagonal(f.a, pi * std::sqrt(lambda)));
    EXPECT_LE(relative_norm(solve_pi(ctx, f, v, lambda).v, solve(damped, v.v)), 1e-11) << lambda;
  }
}

TEST_P(Exactness, PiPathDiffersFromTheExactOneOnlyInBetween) {
  Random random(12);
  const Factors f{random_spd(5, random, 0.2), random_spd(4, random, 0.2)};
  const Matrix v = random_matrix(4, 5, random);
  const auto difference = [&](double lambda) {
    return relative_norm(solve_pi(ctx, f, v, lambda).v, solve_eigen(ctx, f, v, lambda).v);
  };
  EXPECT_GT(difference(1), 0.05);
  // The cross terms are sqrt(lambda) times the factors: small beside their product, and beside
  // lambda, at the two ends.
  EXPECT_LT(difference(1e-6), 0.02);
  EXPECT_LT(difference(1e-12), 1e-4);
  EXPECT_LT(difference(1e6), 0.02);
  EXPECT_LT(difference(1e12), 1e-4);
}

TEST_P(Exactness, StrongDampingTurnsTheStepIntoTheGradient) {
  Random random(13);
  const Factors f{random_spd(6, random), random_spd(4, random)};
  const Matrix v = random_matrix(4, 6, random);
  EXPECT_LE(1 - cosine(solve_eigen(ctx, f, v, 1e6).v, v.v), 1e-6);
  EXPECT_LE(1 - cosine(solve_pi(ctx, f, v, 1e8).v, v.v), 1e-6);
  EXPECT_GT(1 - cosine(solve_pi(ctx, f, v, 1e-4).v, v.v), 1e-3);  // control
}

TEST_P(Exactness, IdentityFactorsScaleTheGradient) {
  Random random(14);
  const Factors f{identity(6), identity(4)};
  const Matrix v = random_matrix(4, 6, random);
  for (const double lambda : {1e-6, 0.03, 1.0, 50.0}) {
    Vector exact = v.v, split = v.v;
    for (double& e : exact) e /= 1 + lambda;
    for (double& e : split) e /= (1 + std::sqrt(lambda)) * (1 + std::sqrt(lambda));
    EXPECT_TRUE(near(solve_eigen(ctx, f, v, lambda).v, exact, 1e-12)) << lambda;
    EXPECT_TRUE(near(solve_pi(ctx, f, v, lambda).v, split, 1e-12)) << lambda;
  }
}

TEST_P(Exactness, ZeroFactorsGiveFiniteSteps) {
  Random random(15);
  const Matrix v = random_matrix(4, 6, random);
  const Matrix a = random_spd(6, random), g = random_spd(4, random);
  const double lambda = 0.01;
  Vector scaled = v.v;
  for (double& e : scaled) e /= lambda;
  const Factors none{Matrix(6, 6), Matrix(4, 4)};
  EXPECT_TRUE(near(solve_pi(ctx, none, v, lambda).v, scaled, 1e-12));
  for (const Factors& f : {Factors{Matrix(6, 6), g}, Factors{a, Matrix(4, 4)}, none}) {
    for (const double e : solve_pi(ctx, f, v, lambda).v) EXPECT_TRUE(std::isfinite(e));
    // Exact damping: the product is zero when one factor is.
    EXPECT_TRUE(near(solve_eigen(ctx, f, v, lambda).v, scaled, 1e-12));
  }
}

TEST_P(Exactness, DeadUnitsLeaveTheLiveProblemUntouched) {
  Random random(16);
  const std::int64_t n = 30;
  Matrix x = random_matrix(n, 6, random), dy = random_matrix(n, 4, random);
  Matrix live_x(n, 3), live_dy(n, 3);
  for (std::int64_t r = 0; r < n; ++r) {
    for (std::int64_t c = 0; c < 3; ++c) live_x(r, c) = x(r, c);
    for (std::int64_t c = 0; c < 3; ++c) live_dy(r, c) = dy(r, c);
    for (std::int64_t c = 3; c < 6; ++c) x(r, c) = 0;
    dy(r, 3) = 0;
  }
  const auto statistics = [&](const Matrix& inputs, const Matrix& grads) {
    return compute_factors(ctx, LinearSpec{inputs.cols, grads.cols, false}, inputs.view(),
                           grads.view(), n);
  };
  const auto gradient = [&](const Matrix& inputs, const Matrix& grads) {
    return multiply(transpose(grads), inputs);
  };
  const double lambda = 1e-3;
  const Matrix step = solve_eigen(ctx, statistics(x, dy), gradient(x, dy), lambda);
  const Matrix live =
      solve_eigen(ctx, statistics(live_x, live_dy), gradient(live_x, live_dy), lambda);
  Vector block;
  for (std::int64_t r = 0; r < 4; ++r) {
    for (std::int64_t c = 0; c < 6; ++c) {
      if (r < 3 && c < 3) {
        block.push_back(step(r, c));
      } else {
        EXPECT_EQ(step(r, c), 0) << r << " " << c;
      }
    }
  }
  EXPECT_TRUE(near(block, live.v, 1e-12));
  // Control: pi counts the dead units, of which A has a larger share.
  const Matrix pi_step = solve_pi(ctx, statistics(x, dy), gradient(x, dy), lambda);
  const Matrix pi_live =
      solve_pi(ctx, statistics(live_x, live_dy), gradient(live_x, live_dy), lambda);
  EXPECT_GT(std::abs(pi_step(0, 0) - pi_live(0, 0)), 1e-6 * std::abs(pi_live(0, 0)));
}

TEST_P(Exactness, ShiftingAScaleBetweenTheFactorsChangesNothing) {
  Random random(17);
  const Factors f{random_spd(5, random), random_spd(4, random)};
  const Matrix v = random_matrix(4, 5, random);
  const Matrix expected = solve_pi(ctx, f, v, 0.02);
  for (const double c : {1e-30, 49.0, 1e30}) {
    Factors scaled = f;
    for (double& e : scaled.a.v) e *= c;
    for (double& e : scaled.g.v) e /= c;
    EXPECT_TRUE(near(solve_pi(ctx, scaled, v, 0.02).v, expected.v, 1e-12)) << c;
    EXPECT_TRUE(near(solve_eigen(ctx, scaled, v, 0.02).v, solve_eigen(ctx, f, v, 0.02).v, 1e-12));
  }
}

/// Loss of one sample after a batch normalisation with given statistics: sum over positions of
/// weight * tanh(gamma * xhat + beta), which is not linear in the parameters.
double sample_loss(const Vector& xhat, const Vector& weights, double gamma, double beta) {
  double loss = 0;
  for (std::size_t i = 0; i < xhat.size(); ++i)
    loss += weights[i] * std::tanh(gamma * xhat[i] + beta);
  return loss;
}

TEST(BatchNormExactness, UnitWiseBlocksAreTheFisherOfGammaAndBeta) {
  Context ctx;
  Random random(18);
  const std::int64_t n = 12, positions = 6;
  const double mean = 0.3, inv_std = 1.7, gamma = 0.8, beta = -0.2, step = 1e-5, lambda = 0.1;
  const Vector x = random_vector(n * positions, random),
               weights = random_vector(n * positions, random);
  Vector dy;
  Matrix fisher(2, 2);
  for (std::int64_t sample = 0; sample < n; ++sample) {
    Vector xhat, w;
    for (std::int64_t p = 0; p < positions; ++p) {
      const auto i = static_cast<std::size_t>(sample * positions + p);
      xhat.push_back((x[i] - mean) * inv_std);
      w.push_back(weights[i]);
      const double t = std::tanh(gamma * xhat.back() + beta);
      dy.push_back(w.back() * (1 - t * t));
    }
    const auto loss = [&](double g, double b) { return sample_loss(xhat, w, g, b); };
    add_outer(fisher,
              {(loss(gamma + step, beta) - loss(gamma - step, beta)) / (2 * step),
               (loss(gamma, beta + step) - loss(gamma, beta - step)) / (2 * step)},
              1.0 / static_cast<double>(n));
  }
  Vector blocks(3);
  compute_norm_fisher(ctx, {.channels = 1}, NormFisher::unit_wise,
                      NormRecord{view_of(x.data(), {n, 2, 3, 1}), view_of(&mean, {1}),
                                 view_of(&inv_std, {1}), view_of(dy.data(), {n, 2, 3, 1}), n, 1},
                      0, view_of(blocks.data(), {3, 1}));
  // Central differences err by step^2 of the size of third derivatives.
  EXPECT_TRUE(near(blocks, Vector{fisher(0, 0), fisher(0, 1), fisher(1, 1)}, 1e-8));

  Vector update = {1, -2};
  precondition_norm(ctx, NormFisher::unit_wise, view_of(blocks.data(), {3, 1}), lambda,
                    view_of(&update[0], {1}), view_of(&update[1], {1}));
  EXPECT_TRUE(near(update, solve(plus_diagonal(fisher, lambda), {1, -2}), 1e-7));

  // A fixed gamma: the Fisher of beta is the last element, and with one parameter per channel it is
  // solved exactly.
  double beta_block = 0, beta_update = -2;
  compute_norm_fisher(ctx, {.channels = 1, .scale = false}, NormFisher::unit_wise,
                      NormRecord{view_of(x.data(), {n, 2, 3, 1}), view_of(&mean, {1}),
                                 view_of(&inv_std, {1}), view_of(dy.data(), {n, 2, 3, 1}), n, 1},
                      0, view_of(&beta_block, {1, 1}));
  precondition_norm(ctx, NormFisher::unit_wise, view_of(&beta_block, {1, 1}), lambda, {},
                    view_of(&beta_update, {1}));
  EXPECT_TRUE(near(Vector{beta_update}, Vector{-2 / (fisher(1, 1) + lambda)}, 1e-7));
  // Control: training gamma as well changes beta's direction.
  EXPECT_FALSE(near(Vector{beta_update}, Vector{update[1]}, 1e-3));
}

}  // namespace
}  // namespace dkfac::kfac
