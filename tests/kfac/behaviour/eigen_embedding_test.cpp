// The preconditioned gradient of an embedding table against Eigen's solution of the whole damped
// system with a dense A.

#include <cmath>
#include <limits>
#include <unsupported/Eigen/KroneckerProduct>
#include <vector>

#include <gtest/gtest.h>

#include "kfac/inverse/layer_curvature.h"
#include "kfac/inverse/refresh.h"
#include "support/both_backends.h"
#include "support/eigen.h"
#include "support/natural_gradient.h"

namespace dkfac::kfac {
namespace {

using dkfac::testing::natural_gradient;
using testing::as_eigen;
using testing::distance;
using testing::RowMajor;

class TableBesideEigen : public testing::BothBackends {};
DKFAC_BOTH_BACKENDS(TableBesideEigen);

struct TableProblem {
  RowMajor a, g, v;  ///< v[vocabulary,width]
};

/// Frequencies that differ by far, and are 0 for the last index.
TableProblem table_problem(std::int64_t vocabulary, std::int64_t width, Random& random) {
  TableProblem p{RowMajor::Zero(vocabulary, vocabulary),
                 testing::with_eigenvalues(testing::falling_values(width, 100), random) / 4,
                 testing::random_eigen(vocabulary, width, random)};
  for (std::int64_t i = 0; i + 1 < vocabulary; ++i)
    p.a(i, i) = 0.5 / static_cast<double>((i + 1) * (i + 1));
  return p;
}

/// (A + a) (x) (G + g) + all for gradients in row order, where A is on the left.
RowMajor table_system(const TableProblem& p, double a, double g, double all) {
  const auto plus = [](const RowMajor& m, double shift) -> RowMajor {
    return m + shift * RowMajor::Identity(m.rows(), m.cols());
  };
  const RowMajor product = ::Eigen::kroneckerProduct(plus(p.a, a), plus(p.g, g));
  return plus(product, all);
}

TEST_P(TableBesideEigen, TheDiagonalSolvesTheWholeSystem) {
  Random random(1);
  for (const auto& [vocabulary, width] : {std::pair<std::int64_t, std::int64_t>{2, 1}, {9, 4}}) {
    const TableProblem p = table_problem(vocabulary, width, random);
    for (const auto inverse : {InverseMethod::cholesky, InverseMethod::eigen})
      for (const auto split : {DampingSplit::pi, DampingSplit::constant}) {
        CurvatureOptions options = natural_gradient();
        options.damping = 0.02;
        options.damping_split = split;
        options.statistics.new_weight = 1;
        options.inverse.method = inverse;
        options.dtype = DType::f64;
        const LayerSpec spec = EmbeddingSpec{.vocabulary = vocabulary, .width = width};
        LayerCurvature layer = make_layer_curvature(ctx, spec, options);
        std::vector<double> diagonal, lower;
        for (std::int64_t i = 0; i < vocabulary; ++i) diagonal.push_back(p.a(i, i));
        for (std::int64_t i = 0; i < width; ++i)
          for (std::int64_t j = 0; j <= i; ++j) lower.push_back(p.g(i, j));
        const auto view = [](std::vector<double>& x) { return view_of(x.data(), {std::ssize(x)}); };
        EXPECT_TRUE(merge_factor(ctx, options, view(diagonal), layer.a));
        EXPECT_TRUE(merge_factor(ctx, options, view(lower), layer.g));
        std::vector<RefreshTask> tasks;
        add_refresh_tasks(ctx, options, layer, {}, tasks);
        for (const RefreshTask& task : RefreshWorkers(ctx).run(tasks))
          EXPECT_EQ(task.stage, InverseStage::damped);
        RowMajor u = p.v;
        apply_curvature(ctx, spec, options, layer, view_of(u.data(), {u.size()}), {});

        const double root = std::sqrt(options.damping);
        const double pi = split == DampingSplit::constant
                              ? 1
                              : std::sqrt(p.a.trace() / static_cast<double>(vocabulary)) /
                                    std::sqrt(p.g.trace() / static_cast<double>(width));
        const bool eigen = inverse == InverseMethod::eigen;
        const auto expected = [&](double factor) -> RowMajor {
          const RowMajor system = eigen
                                      ? table_system(p, 0, 0, factor * options.damping)
                                      : table_system(p, factor * pi * root, root / pi / factor, 0);
          const ::Eigen::VectorXd x = system.partialPivLu().solve(
              as_eigen({p.v.data(), std::size_t(p.v.size())}, p.v.size(), 1));
          return as_eigen({x.data(), std::size_t(x.size())}, vocabulary, width);
        };
        // c = 4, n = 9 + 4, conditioned like the largest element over lambda, below 100.
        const double tolerance = 4 * 13 * 100 * std::numeric_limits<double>::epsilon() *
                                 expected(1).cwiseAbs().maxCoeff();
        EXPECT_LE(distance(u, expected(1)), tolerance) << vocabulary;
        // Control: a damping, or a pi, that is a thousandth off.
        EXPECT_GT(distance(u, expected(1.001)), tolerance) << vocabulary;
      }
  }
}

}  // namespace
}  // namespace dkfac::kfac
