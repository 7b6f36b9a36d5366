// The preconditioned gradient of a layer against Eigen's solution of the whole damped system of
// Kronecker products.

#include "support/eigen.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <unsupported/Eigen/KroneckerProduct>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/ops.h"

#include "kfac/inverse/apply_factor.h"
#include "kfac/inverse/block_triangular.h"
#include "kfac/inverse/layer_curvature.h"
#include "kfac/inverse/refresh.h"
#include "support/both_backends.h"

namespace dkfac::kfac {
namespace {

using ::Eigen::VectorXd;
using testing::as_eigen;
using testing::distance;
using testing::falling_values;
using testing::RowMajor;
using testing::with_eigenvalues;

constexpr double kUnit = std::numeric_limits<double>::epsilon();

RowMajor damped(const RowMajor& m, double shift) {
  return m + shift * RowMajor::Identity(m.rows(), m.cols());
}

RowMajor kronecker(const RowMajor& g, const RowMajor& a) { return ::Eigen::kroneckerProduct(g, a); }

/// The solution u of m vec(u) = vec(v), in row order.
RowMajor solve(const RowMajor& m, const RowMajor& v) {
  const VectorXd u =
      m.partialPivLu().solve(as_eigen({v.data(), std::size_t(v.size())}, v.size(), 1));
  return as_eigen({u.data(), std::size_t(u.size())}, v.rows(), v.cols());
}

double condition(const RowMajor& m) {
  const VectorXd w =
      ::Eigen::SelfAdjointEigenSolver<RowMajor>(m, ::Eigen::EigenvaluesOnly).eigenvalues();
  return w[w.size() - 1] / w[0];
}

/// Factors of a layer with `d` inputs, a bias among them, and a gradient.
struct Problem {
  RowMajor a, g, v;
};
Problem problem(std::int64_t out, std::int64_t d, double condition, Random& random) {
  // Means of their eigenvalues apart from each other, so that pi is not 1.
  return {8 * with_eigenvalues(falling_values(d, condition), random),
          with_eigenvalues(falling_values(out, condition), random) / 4,
          testing::random_eigen(out, d, random)};
}

double pi_of(const Problem& p) {
  return std::sqrt((p.a.trace() / static_cast<double>(p.a.rows())) /
                   (p.g.trace() / static_cast<double>(p.g.rows())));
}

/// (G + sqrt(lambda)/pi) (x) (A + pi sqrt(lambda))
RowMajor split_system(const Problem& p, double lambda, double pi) {
  const double root = std::sqrt(lambda);
  return kronecker(damped(p.g, root / pi), damped(p.a, pi * root));
}

class LayerBesideEigen : public testing::BothBackends {
 protected:
  [[nodiscard]] static CurvatureOptions options_of(InverseMethod inverse) {
    return {.damping = 0.02,
            .statistics = {.new_weight = 1},
            .refresh = {.inverse_interval = 2},
            .inverse = {.method = inverse},
            .dtype = DType::f64};
  }
  /// Averages and inverses as a step makes them.
  LayerCurvature make(const LinearSpec& spec, const CurvatureOptions& options, const Problem& p) {
    LayerCurvature layer = make_layer_curvature(ctx, spec, options);
    const auto merge = [&](const RowMajor& m, Factor& factor) {
      std::vector<double> lower;
      for (std::int64_t i = 0; i < m.rows(); ++i)
        for (std::int64_t j = 0; j <= i; ++j) lower.push_back(m(i, j));
      EXPECT_TRUE(merge_factor(ctx, options, view_of(lower.data(), {std::ssize(lower)}), factor));
    };
    merge(p.a, layer.a);
    merge(p.g, layer.g);
    std::vector<RefreshTask> tasks;
    add_refresh_tasks(ctx, options, layer, {}, tasks);
    for (const RefreshTask& task : RefreshWorkers(ctx).run(tasks))
      EXPECT_EQ(task.stage, InverseStage::damped);
    return layer;
  }
  RowMajor apply(const LinearSpec& spec, const CurvatureOptions& options,
                 const LayerCurvature& layer, const RowMajor& v) {
    RowMajor weight = v.leftCols(spec.in), bias = v.rightCols(v.cols() - spec.in);
    apply_curvature(ctx, spec, options, layer, view_of(weight.data(), {weight.size()}),
                    bias.size() > 0 ? view_of(bias.data(), {bias.size()}) : TensorView{});
    RowMajor out(v.rows(), v.cols());
    out << weight, bias;
    return out;
  }
  RowMajor precondition(const CurvatureOptions& options, const Problem& p) {
    const LinearSpec spec = spec_of(p);
    return apply(spec, options, make(spec, options, p), p.v);
  }
  static LinearSpec spec_of(const Problem& p) {
    return {.in = p.a.rows() - (p.a.rows() > 1), .out = p.g.rows(), .bias = p.a.rows() > 1};
  }
};
DKFAC_BOTH_BACKENDS(LayerBesideEigen);

struct Sizes {
  std::int64_t out, d;
};
constexpr Sizes kLayers[] = {{1, 1}, {1, 4}, {3, 1}, {3, 5}, {5, 3}, {7, 7}, {9, 17}};

TEST_P(LayerBesideEigen, SplitDampingSolvesTheKroneckerSystem) {
  Random random(1);
  const CurvatureOptions options = options_of(InverseMethod::cholesky);
  for (const auto& [out, d] : kLayers) {
    for (const double spread : {10.0, 1e10}) {
      const Problem p = problem(out, d, spread, random);
      const RowMajor u = precondition(options, p);
      const RowMajor system = split_system(p, options.damping, pi_of(p));
      const RowMajor expected = solve(system, p.v);
      // c = 4: of the condition, and of the largest element.
      const double tolerance = 4 * static_cast<double>(out + d) * kUnit * condition(system) *
                               expected.cwiseAbs().maxCoeff();
      EXPECT_LE(distance(u, expected), tolerance) << out << " " << d << " " << spread;
      // Controls: a pi that is a thousandth off, pi the wrong way round, and G and A exchanged.
      const double pi = pi_of(p);
      EXPECT_GT(distance(u, solve(split_system(p, options.damping, 1.001 * pi), p.v)), tolerance);
      EXPECT_GT(distance(u, solve(split_system(p, options.damping, 1 / pi), p.v)), tolerance);
      if (out == 1 || d == 1) continue;  // A number times a matrix, in either order.
      const double root = std::sqrt(options.damping);
      const RowMajor exchanged = kronecker(damped(p.a, pi * root), damped(p.g, root / pi));
      EXPECT_GT(distance(u, solve(exchanged, p.v)), tolerance) << out << " " << d;
    }
  }
}

TEST_P(LayerBesideEigen, EveryRuleOfTheSplitSolvesItsKroneckerSystem) {
  Random random(5);
  for (const auto& [out, d] : kLayers) {
    const Problem p = problem(out, d, 100, random);
    const double traces = std::sqrt(p.a.trace() / p.g.trace());
    const std::pair<DampingSplit, double> rules[] = {{DampingSplit::pi, pi_of(p)},
                                                     {DampingSplit::equal_traces, traces},
                                                     {DampingSplit::constant, 1}};
    for (const auto& [rule, pi] : rules) {
      CurvatureOptions options = options_of(InverseMethod::cholesky);
      options.damping_split = rule;
      const RowMajor u = precondition(options, p);
      for (const auto& [other, other_pi] : rules) {
        const RowMajor system = split_system(p, options.damping, other_pi);
        const RowMajor expected = solve(system, p.v);
        // c = 4, as above.
        const double tolerance = 4 * static_cast<double>(out + d) * kUnit * condition(system) *
                                 expected.cwiseAbs().maxCoeff();
        if (rule == other) {
          EXPECT_LE(distance(u, expected), tolerance) << out << " " << d;
        } else if (std::abs(pi / other_pi - 1) > 0.01) {  // In square layers two of them are one.
          EXPECT_GT(distance(u, expected), 1e-4 * expected.cwiseAbs().maxCoeff())
              << out << " " << d;
        }
      }
    }
  }
}

TEST_P(LayerBesideEigen, EigenvectorsSolveTheDampedKroneckerProduct) {
  Random random(2);
  const CurvatureOptions options = options_of(InverseMethod::eigen);
  for (const auto& [out, d] : kLayers) {
    for (const double spread : {10.0, 1e10}) {
      const Problem p = problem(out, d, spread, random);
      const RowMajor u = precondition(options, p);
      const RowMajor system = damped(kronecker(p.g, p.a), options.damping);
      const RowMajor expected = solve(system, p.v);
      // c = 4, as above.
      const double tolerance = 4 * static_cast<double>(out + d) * kUnit * condition(system) *
                               expected.cwiseAbs().maxCoeff();
      EXPECT_LE(distance(u, expected), tolerance) << out << " " << d << " " << spread;
      // Control: a lambda that is a thousandth off.
      const RowMajor other = damped(kronecker(p.g, p.a), 1.001 * options.damping);
      EXPECT_GT(distance(u, solve(other, p.v)), tolerance);
    }
  }
}

TEST_P(LayerBesideEigen, EkfacDividesBySecondMomentsInEigensVectors) {
  Random random(3);
  const CurvatureOptions options = options_of(InverseMethod::ekfac);
  for (const auto& [out, d] : kLayers) {
    // Eigenvalues 1 apart: vectors, up to their signs, are as exact as the solver.
    const auto spaced = [&](std::int64_t n) {
      return with_eigenvalues(VectorXd::LinSpaced(n, 1, static_cast<double>(n)), random);
    };
    const Problem p{spaced(d), spaced(out), testing::random_eigen(out, d, random)};
    const LinearSpec spec = spec_of(p);
    LayerCurvature layer = make(spec, options, p);
    const RowMajor moments = testing::random_eigen(out, d, random).array().square();
    ASSERT_TRUE(merge_scales(ctx, options, view_of(moments.data(), {moments.size()}), layer));
    const RowMajor u = apply(spec, options, layer, p.v);
    const auto vectors = [](const RowMajor& m) {
      return RowMajor(::Eigen::SelfAdjointEigenSolver<RowMajor>(m).eigenvectors());
    };
    const RowMajor q = kronecker(vectors(p.g), vectors(p.a));
    const auto system = [&](const RowMajor& scales) {
      const VectorXd w = as_eigen({scales.data(), std::size_t(scales.size())}, scales.size(), 1);
      return damped(q * w.asDiagonal() * q.transpose(), options.damping);
    };
    const RowMajor expected = solve(system(moments), p.v);
    // c = 8: vectors of eigenvalues up to out and d, on both sides.
    const double tolerance = 8 * static_cast<double>(out + d) * kUnit * condition(system(moments)) *
                             expected.cwiseAbs().maxCoeff();
    EXPECT_LE(distance(u, expected), tolerance) << out << " " << d;
    // Controls: the moments in another order, and products of eigenvalues in their place.
    if (out * d == 1) continue;
    const RowMajor reversed = moments.reverse();
    EXPECT_GT(distance(u, solve(system(reversed), p.v)), tolerance) << out << " " << d;
    EXPECT_GT(distance(u, solve(damped(kronecker(p.g, p.a), options.damping), p.v)), tolerance);
  }
}

TEST_P(LayerBesideEigen, BlockedTriangularFactorsSolveAsEigens) {
  Random random(4);
  for (const std::int64_t n : {1, 2, 3, 17, 64, 129, 300}) {
    for (const double spread : {10.0, 1e10}) {
      const VectorXd values = falling_values(n, spread);
      const double least = values.minCoeff();
      const RowMajor m = with_eigenvalues(values, random);
      const RowMajor v = testing::random_eigen(5, n, random);
      RowMajor l = m.llt().matrixL(), left = v, right = v.transpose();
      const TensorView blocked = view_of(l.data(), {n, n});
      invert_diagonal_blocks(ctx, blocked);
      const AppliedFactor factor{.form = FactorForm::cholesky, .inverse = blocked};
      RowMajor one = RowMajor::Identity(5, 5);
      apply_factors(ctx, factor, {.inverse = view_of(one.data(), {5, 5})},
                    {.weight = view_of(left.data(), {5, n}), .bias = {}});
      apply_left(ctx, factor, {.weight = view_of(right.data(), {n, 5}), .bias = {}});
      const RowMajor expected = m.llt().solve(v.transpose());
      // c = 4: of the condition, and of the largest element.
      const double tolerance =
          4 * static_cast<double>(n) * kUnit / least * expected.cwiseAbs().maxCoeff();
      EXPECT_LE(distance(left, RowMajor(expected.transpose())), tolerance) << n << " " << spread;
      EXPECT_LE(distance(right, expected), tolerance) << n << " " << spread;
      // Control: a tenth of the least eigenvalue added.
      EXPECT_GT(distance(right, RowMajor(damped(m, 0.1 * least).llt().solve(v.transpose()))),
                tolerance);
    }
  }
}

}  // namespace
}  // namespace dkfac::kfac
