#include <cmath>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"
#include "dkfac/eigen.h"
#include "dkfac/optim/optimizer.h"

#include "support/eigen.h"
#include "support/near.h"

// newton_schulz() in f64 against Eigen: as products of matrices, as a polynomial of the singular
// values, and as the polar factor, to which it converges.
namespace dkfac::testing {
namespace {

using optim::NewtonSchulz;

constexpr NewtonSchulz kConverging{.iterations = 60, .a = 15.0 / 8, .b = -10.0 / 8, .c = 3.0 / 8};

struct Extent {
  std::int64_t rows, columns;
};
constexpr Extent kExtents[] = {{1, 1}, {1, 9}, {9, 1}, {5, 5}, {4, 11}, {11, 4}, {33, 20}};

RowMajor iterated(RowMajor x, const NewtonSchulz& options) {
  Context ctx;
  optim::newton_schulz(ctx, options, view_of(x));
  return x;
}

/// The published program, which transposes a matrix that has more rows than columns.
RowMajor as_published(const RowMajor& g, const NewtonSchulz& o) {
  const bool transposed = g.rows() > g.cols();
  RowMajor x = transposed ? RowMajor(g.transpose()) : g;
  x /= std::hypot(x.norm(), o.epsilon);
  for (int i = 0; i < o.iterations; ++i) {
    const RowMajor a = x * x.transpose();
    const RowMajor b = o.b * a + o.c * a * a;
    x = (o.a * x + b * x).eval();
  }
  return transposed ? RowMajor(x.transpose()) : x;
}

double apart(const RowMajor& x, const RowMajor& y) { return (x - y).cwiseAbs().maxCoeff(); }

/// U p(p(...(S / |S|))) V', or U V' of the singular values that are not zero.
RowMajor by_singular_values(const RowMajor& g, const NewtonSchulz& o, bool limit = false) {
  const Eigen::JacobiSVD<Eigen::MatrixXd> svd(g, Eigen::ComputeThinU | Eigen::ComputeThinV);
  Eigen::VectorXd s = svd.singularValues();
  if (limit) {
    s = s.unaryExpr([&](double x) { return x > 1e-9 * s[0] ? 1.0 : 0.0; }).eval();
  } else {
    s /= std::hypot(s.norm(), o.epsilon);
    for (int i = 0; i < o.iterations; ++i)
      s = s.unaryExpr([&](double x) { return x * (o.a + x * x * (o.b + x * x * o.c)); }).eval();
  }
  return svd.matrixU() * s.asDiagonal() * svd.matrixV().transpose();
}

// Five iterations of sums of up to 33 terms, whose errors grow by at most a^5 = 485.
constexpr double kRounding = 485 * 5 * 33 * eps<double>;

TEST(NewtonSchulz, ComputesWhatThePublishedProgramDoes) {
  Random random(1);
  for (const auto& [rows, columns] : kExtents) {
    const RowMajor g = random_eigen(rows, columns, random);
    const RowMajor here = iterated(g, {});
    EXPECT_LE(apart(here, as_published(g, {})), kRounding) << rows << " x " << columns;
    // Controls: another coefficient, another number of iterations, no normalisation.
    EXPECT_GT(apart(here, as_published(g, {.b = -4.78})), 1e-4);
    EXPECT_GT(apart(here, as_published(g, {.iterations = 4})), 1e-4);
    EXPECT_GT(apart(here, as_published(g, {.epsilon = 3 * g.norm()})), 1e-4);
  }
}

TEST(NewtonSchulz, IsAPolynomialOfTheSingularValues) {
  Random random(2);
  for (const auto& [rows, columns] : kExtents) {
    const RowMajor g = random_eigen(rows, columns, random);
    EXPECT_LE(apart(iterated(g, {}), by_singular_values(g, {})), kRounding);
    EXPECT_GT(apart(iterated(g, {}), by_singular_values(g, {.a = 3.45})), 1e-4);
  }
}

TEST(NewtonSchulz, ConvergesToThePolarFactor) {
  Random random(3);
  for (const auto& [rows, columns] : kExtents) {
    const RowMajor g = random_eigen(rows, columns, random);
    const RowMajor polar = by_singular_values(g, {}, true);
    // In the limit a rounding of 33 terms remains, relative to singular values of 1: c = 10.
    EXPECT_LE(apart(iterated(g, kConverging), polar), 10 * 33 * eps<double>);
    EXPECT_GT(apart(iterated(g, {}), polar), 1e-3) << "control: the published ones do not converge";
  }
}

TEST(NewtonSchulz, TakesSingularValuesNearOne) {
  Random random(4);
  const Eigen::VectorXd falling = falling_values(24, 100);
  const RowMajor g = with_eigenvalues(falling / falling.norm(), random);
  const auto values = Eigen::JacobiSVD<Eigen::MatrixXd>(iterated(g, {})).singularValues();
  EXPECT_GT(values.minCoeff(), 0.68);
  EXPECT_LT(values.maxCoeff(), 1.21);
  EXPECT_LT(Eigen::JacobiSVD<Eigen::MatrixXd>(g).singularValues().minCoeff(), 0.01);
}

TEST(NewtonSchulz, KeepsTheRankAndAZeroMatrix) {
  Random random(5);
  const RowMajor left = random_eigen(12, 3, random), right = random_eigen(3, 8, random);
  const RowMajor g = left * right;
  EXPECT_LE(apart(iterated(g, {}), by_singular_values(g, {})), kRounding);
  // Rounding errors of the zero singular values grow by 15/8 in each iteration: fewer of them.
  NewtonSchulz some = kConverging;
  some.iterations = 20;
  EXPECT_LE(apart(iterated(g, some), by_singular_values(g, {}, true)), 1e-8);
  const RowMajor zero = RowMajor::Zero(4, 6);
  EXPECT_EQ(iterated(zero, {}), zero);
}

TEST(NewtonSchulz, DoesNotDependOnTheSizeOfTheMatrixUnlessItIsTiny) {
  Random random(6);
  const RowMajor g = random_eigen(6, 4, random);
  for (const double size : {1e-4, 1e6})
    EXPECT_LE(apart(iterated(size * g, {}), iterated(g, {})), 1e-5) << size;
  EXPECT_LT(iterated(1e-12 * g, {}).cwiseAbs().maxCoeff(), 0.1) << "epsilon bounds the factor";
}

TEST(NewtonSchulz, WritesAViewWithGaps) {
  Random random(7);
  RowMajor whole = random_eigen(7, 9, random);
  const RowMajor before = whole;
  Context ctx;
  optim::newton_schulz(ctx, {}, view_of(whole).slice(1, 2, 5));
  RowMajor expected = before;
  expected.middleCols(2, 5) = iterated(before.middleCols(2, 5), {});
  EXPECT_EQ(whole, expected);
}

TEST(NewtonSchulz, RefusesWhatIsNoMatrixAndOptionsOutOfRange) {
  Context ctx;
  RowMajor g = RowMajor::Ones(2, 3);
  const auto run = [&](const NewtonSchulz& options, TensorView x) {
    optim::newton_schulz(ctx, options, x);
  };
  EXPECT_THROW(run({}, view_of(g).flat()), InvalidArgument);
  EXPECT_THROW(run({}, view_of(g).slice(0, 0, 0)), InvalidArgument);
  EXPECT_THROW(run({.iterations = -1}, view_of(g)), InvalidArgument);
  EXPECT_THROW(run({.epsilon = 0}, view_of(g)), InvalidArgument);
  EXPECT_THROW(run({.a = std::nan("")}, view_of(g)), InvalidArgument);
}

TEST(MuonScale, IsAsPublished) {
  using optim::muon_scale, optim::MuonScale;
  EXPECT_DOUBLE_EQ(muon_scale(MuonScale::original, 9, 4), 1.5);
  EXPECT_DOUBLE_EQ(muon_scale(MuonScale::original, 4, 9), 1);
  EXPECT_DOUBLE_EQ(muon_scale(MuonScale::match_rms_adamw, 100, 4), 2);
  EXPECT_DOUBLE_EQ(muon_scale(MuonScale::match_rms_adamw, 4, 100), 2);
  EXPECT_THROW((void)muon_scale(MuonScale::original, 0, 3), InvalidArgument);
}

}  // namespace
}  // namespace dkfac::testing
