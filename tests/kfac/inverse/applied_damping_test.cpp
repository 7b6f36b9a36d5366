#include "kfac/inverse/applied_damping.h"

#include <vector>

#include <gtest/gtest.h>

#include "support/near.h"

namespace dkfac::kfac {
namespace {

using testing::eps;

CurvatureOptions scaled_options(double damping) {
  CurvatureOptions options;
  options.damping = damping;
  options.relative_damping = damping > 0 ? 0.1 : 0.5;
  options.norm_damping = 3;
  return options;
}

/// Of blocks fisher[rows,2].
double norm_lambda(const CurvatureOptions& options, std::vector<double> fisher) {
  Context ctx;
  Scratch scratch(ctx);
  const std::int64_t rows = std::ssize(fisher) / 2;
  return norm_damping(ctx, scratch, options, view_of(fisher.data(), {rows, 2})).lambda();
}

double eigen_lambda(const CurvatureOptions& options, std::vector<double> a, std::vector<double> g) {
  Context ctx;
  Scratch scratch(ctx);
  return eigen_damping(ctx, scratch, options, view_of(a.data(), {std::ssize(a)}),
                       view_of(g.data(), {std::ssize(g)}))
      .lambda();
}

TEST(AppliedDamping, IsAFractionOfTheMeanEigenvalue) {
  // n = 4 summands: c = 4.
  constexpr double kTolerance = 4 * 4 * eps<double>;
  const CurvatureOptions relative = scaled_options(0);
  // [1 7; 7 3] and [2 8; 8 6]: the trace of the blocks is 12, of 4 eigenvalues.
  EXPECT_NEAR(norm_lambda(relative, {1, 2, 7, 8, 3, 6}), 3 * 0.5 * 3, kTolerance);
  EXPECT_NEAR(norm_lambda(relative, {1, 2, 3, 6}), 3 * 0.5 * 3, kTolerance);
  EXPECT_NEAR(norm_lambda(relative, {3, 6}), 3 * 0.5 * 4.5, kTolerance) << "beta alone";
  EXPECT_NEAR(eigen_lambda(relative, {0, 1, 5}, {0.5, 3.5}), 0.5 * 2 * (0.25 + 12.25) / 4,
              kTolerance)
      << "of G weighted by themselves";
  // Control: absolute ones depend on none of it.
  const CurvatureOptions absolute = scaled_options(0.25);
  EXPECT_EQ(norm_lambda(absolute, {1, 2, 7, 8, 3, 6}), 0.75);
  EXPECT_EQ(eigen_lambda(absolute, {0, 1, 5}, {0.5, 3.5}), 0.25);
}

TEST(AppliedDamping, IsOneWithoutCurvature) {
  const CurvatureOptions relative = scaled_options(0);
  EXPECT_EQ(norm_lambda(relative, std::vector<double>(6)), 1);
  EXPECT_EQ(eigen_lambda(relative, {0, 0}, {1, 2}), 1);
  EXPECT_EQ(eigen_lambda(relative, {1, 2}, {0, 0}), 1);
  EXPECT_EQ(eigen_lambda(relative, {1e-12, 1e-12}, {1e-12}), 1);
  EXPECT_LT(eigen_lambda(relative, {1e-9, 1e-9}, {1e-9}), 1e-17);
}

}  // namespace
}  // namespace dkfac::kfac
