// Dense algebra in f64 beside Eigen's, on matrices without structure, from well conditioned to
// singular.

#include "support/eigen.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/ops.h"

#include "support/both_backends.h"
#include "support/matrices.h"
#include "support/padded.h"

namespace dkfac {
namespace {

using ::Eigen::VectorXd;
using ops::Trans;
using testing::as_eigen;
using testing::Dense;
using testing::distance;
using testing::Padded;
using testing::RowMajor;

constexpr std::int64_t kEigenOrders[] = {1, 2, 3, 17, 64, 129};
constexpr double kConditions[] = {10, 1e10};
constexpr double kUnit = std::numeric_limits<double>::epsilon();

class BesideEigen : public testing::BothBackends {
 protected:
  static Dense dense(const RowMajor& a) {
    Dense out(a.rows(), a.cols());
    std::copy_n(a.data(), a.size(), out.data.begin());
    return out;
  }
  static RowMajor eigen(const Padded& a) {
    const Dense x = a.values();
    return as_eigen(x.data, x.rows, x.cols);
  }
  static RowMajor lower(const Padded& a) { return eigen(a).triangularView<::Eigen::Lower>(); }
  static RowMajor symmetric(const Padded& a) { return eigen(a).selfadjointView<::Eigen::Lower>(); }

  std::int32_t potrf(Padded& a) {
    std::int32_t info = -7;
    ops::potrf(ctx, a.view(), view_of(&info, {1}));
    return info;
  }
  /// The inverse by way of the Cholesky factor.
  RowMajor inverse(const RowMajor& matrix) {
    Padded a = Padded::lower(DType::f64, dense(matrix));
    std::int32_t info = potrf(a);
    EXPECT_EQ(info, 0);
    ops::potri(ctx, a.view(), view_of(&info, {1}));
    EXPECT_EQ(info, 0);
    return symmetric(a);
  }
  struct Decomposition {
    RowMajor vectors;
    VectorXd values;
  };
  Decomposition decompose(const RowMajor& matrix) {
    Padded a = Padded::lower(DType::f64, dense(matrix));
    Decomposition out{{}, VectorXd(matrix.rows())};
    std::int32_t info = -7;
    ops::eigh(ctx, a.view(), view_of(out.values.data(), {matrix.rows()}), view_of(&info, {1}));
    EXPECT_EQ(info, 0);
    out.vectors = eigen(a);
    return out;
  }
};
DKFAC_BOTH_BACKENDS(BesideEigen);

TEST_P(BesideEigen, ProductsAreEigens) {
  Random random(1);
  for (const std::int64_t m : kEigenOrders) {
    for (const std::int64_t n : kEigenOrders) {
      const std::int64_t k = kEigenOrders[random.below(6)];
      for (const auto& [ta, tb] : {std::pair(Trans::no, Trans::no),
                                   {Trans::no, Trans::yes},
                                   {Trans::yes, Trans::no},
                                   {Trans::yes, Trans::yes}}) {
        const RowMajor a = testing::random_eigen(m, k, random);
        const RowMajor b = testing::random_eigen(k, n, random);
        const RowMajor c = testing::random_eigen(m, n, random);
        Padded pa(DType::f64, dense(ta == Trans::yes ? RowMajor(a.transpose()) : a));
        Padded pb(DType::f64, dense(tb == Trans::yes ? RowMajor(b.transpose()) : b));
        Padded pc(DType::f64, dense(c));
        ops::gemm(ctx, ta, tb, 0.7, pa.view(), pb.view(), -1.3, pc.view());
        const RowMajor expected = 0.7 * a * b - 1.3 * c;
        // c = 2 of the sum of all magnitudes: k products on either side.
        const double magnitude =
            (a.cwiseAbs() * b.cwiseAbs()).maxCoeff() + 2 * c.cwiseAbs().maxCoeff();
        const double tolerance = 2 * static_cast<double>(k + 1) * kUnit * magnitude;
        EXPECT_LE(distance(eigen(pc), expected), tolerance) << m << " " << n << " " << k;
        // Control: another beta.
        EXPECT_GT(distance(eigen(pc), RowMajor(0.7 * a * b - 1.2 * c)), tolerance);
      }
    }
  }
}

TEST_P(BesideEigen, SquaresAreEigensRankUpdates) {
  Random random(2);
  for (const std::int64_t d : kEigenOrders) {
    for (const std::int64_t rows : {1, 17, 300}) {
      const RowMajor x = testing::random_eigen(rows, d, random);
      const RowMajor c = testing::random_eigen(d, d, random);
      Padded px(DType::f64, dense(x)), pc = Padded::lower(DType::f64, dense(c));
      ops::syrk(ctx, 0.7, px.view(), -1.3, pc.view());
      RowMajor expected = -1.3 * c;
      expected.selfadjointView<::Eigen::Lower>().rankUpdate(x.transpose(), 0.7);
      // c = 2, as above; the largest sum of squares stands on the diagonal.
      const double magnitude = x.colwise().squaredNorm().maxCoeff() + 2 * c.cwiseAbs().maxCoeff();
      EXPECT_LE(distance(lower(pc), RowMajor(expected.triangularView<::Eigen::Lower>())),
                2 * static_cast<double>(rows + 1) * kUnit * magnitude)
          << d << " " << rows;
      EXPECT_TRUE(pc.upper_untouched());
    }
  }
}

TEST_P(BesideEigen, CholeskyFactorsAreEigens) {
  Random random(3);
  for (const std::int64_t n : kEigenOrders) {
    for (const double condition : kConditions) {
      const RowMajor a = testing::with_eigenvalues(testing::falling_values(n, condition), random);
      Padded p = Padded::lower(DType::f64, dense(a));
      ASSERT_EQ(potrf(p), 0) << n << " " << condition;
      const RowMajor l = lower(p), expected = a.llt().matrixL();
      const double unit = 4 * static_cast<double>(n) * kUnit;
      // c = 4. The factor itself is as sensitive as the matrix; L L' is not.
      EXPECT_LE(distance(l, expected), unit * condition) << n << " " << condition;
      EXPECT_LE(distance(RowMajor(l * l.transpose()), a), unit) << n << " " << condition;
      // Control: of the matrix next to it.
      const RowMajor near = a + 1e-6 * RowMajor::Identity(n, n);
      EXPECT_GT(distance(RowMajor(l * l.transpose()), near), unit);
    }
  }
}

TEST_P(BesideEigen, InversesAreEigens) {
  Random random(4);
  for (const std::int64_t n : kEigenOrders) {
    for (const double spread : kConditions) {
      const VectorXd values = testing::falling_values(n, spread);
      const double condition = 1 / values.minCoeff();  // 1 for a number
      const RowMajor a = testing::with_eigenvalues(values, random);
      const RowMajor x = inverse(a), expected = a.llt().solve(RowMajor::Identity(n, n));
      // c = 4: relative to the largest element, times the condition.
      const double tolerance =
          4 * static_cast<double>(n) * kUnit * condition * expected.cwiseAbs().maxCoeff();
      EXPECT_LE(distance(x, expected), tolerance) << n << " " << condition;
      // Control: the inverse with a tenth of the least eigenvalue added.
      const RowMajor damped = a + 0.1 / condition * RowMajor::Identity(n, n);
      EXPECT_GT(distance(x, RowMajor(damped.inverse())), tolerance);
    }
  }
}

TEST_P(BesideEigen, EigenvaluesAreEigens) {
  Random random(5);
  for (const std::int64_t n : kEigenOrders) {
    for (const double condition : kConditions) {
      const RowMajor a = testing::with_eigenvalues(testing::falling_values(n, condition), random);
      const Decomposition e = decompose(a);
      const VectorXd expected = ::Eigen::SelfAdjointEigenSolver<RowMajor>(a).eigenvalues();
      // c = 4, relative to the largest eigenvalue, which is 1.
      const double tolerance = 4 * static_cast<double>(n) * kUnit;
      EXPECT_LE(distance(e.values, expected), tolerance) << n << " " << condition;
      const auto& q = e.vectors;
      EXPECT_LE(distance(RowMajor(q * e.values.asDiagonal() * q.transpose()), a), tolerance);
      EXPECT_LE(distance(RowMajor(q.transpose() * q), RowMajor::Identity(n, n)), tolerance);
      // Control: in the other order they are others.
      if (n == 1) continue;
      EXPECT_GT(distance(VectorXd(e.values.reverse()), expected), tolerance);
    }
  }
}

TEST_P(BesideEigen, SpacesOfEqualEigenvaluesAreEigens) {
  Random random(6);
  for (const std::int64_t n : {3, 17, 64, 129}) {
    // 1, 2 and 4, a third each: vectors are unique up to a rotation within their space.
    const std::int64_t third = n / 3;
    VectorXd values = VectorXd::Constant(n, 4);
    values.head(third).setConstant(1);
    values.segment(third, third).setConstant(2);
    const RowMajor a = testing::with_eigenvalues(values, random), ours = decompose(a).vectors;
    const RowMajor theirs = ::Eigen::SelfAdjointEigenSolver<RowMajor>(a).eigenvectors();
    const auto onto = [](const RowMajor& q, std::int64_t first, std::int64_t count) {
      return RowMajor(q.middleCols(first, count) * q.middleCols(first, count).transpose());
    };
    // c = 16: errors of the largest eigenvalue, 4, over the least gap, 1, on both sides.
    const double tolerance = 16 * static_cast<double>(n) * kUnit;
    for (const std::int64_t first : {std::int64_t{0}, third})
      EXPECT_LE(distance(onto(ours, first, third), onto(theirs, first, third)), tolerance) << n;
    const std::int64_t rest = n - 2 * third;
    EXPECT_LE(distance(onto(ours, 2 * third, rest), onto(theirs, 2 * third, rest)), tolerance);
    // Control: the spaces of 1 and 2 differ.
    EXPECT_GT(distance(onto(ours, 0, third), onto(theirs, third, third)), 0.01) << n;
  }
}

TEST_P(BesideEigen, SingularMatricesAreSeenAsByEigen) {
  for (const std::int64_t n : {2, 3, 17, 64}) {
    // Whole numbers, so that the minor of order n is 0 without rounding.
    const Dense a = testing::bad_minor_matrix(n, n, 0);
    const RowMajor m = as_eigen(a.data, n, n);
    EXPECT_EQ(m.llt().info(), ::Eigen::NumericalIssue);
    Padded p = Padded::lower(DType::f64, a);
    EXPECT_EQ(potrf(p), n);
    const Decomposition e = decompose(m);
    const double tolerance = 4 * static_cast<double>(n) * kUnit * e.values[n - 1];  // c = 4
    EXPECT_LE(std::abs(e.values[0]), tolerance) << n;
    EXPECT_GT(e.values[1], tolerance) << n;
    EXPECT_LE(distance(e.values, ::Eigen::SelfAdjointEigenSolver<RowMajor>(m).eigenvalues()),
              tolerance);
    // The null space is the line that an LU finds.
    const VectorXd null = ::Eigen::FullPivLU<RowMajor>(m).kernel().col(0).normalized();
    EXPECT_NEAR(std::abs(null.dot(e.vectors.col(0))), 1, tolerance) << n;
  }
}

}  // namespace
}  // namespace dkfac
