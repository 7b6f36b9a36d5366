#include "dkfac/kfac/inverse.h"

#include <array>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"

#include "support/both_backends.h"
#include "support/fisher.h"
#include "support/near.h"
#include "support/not_finite.h"

namespace dkfac::kfac {
namespace {

using namespace testing::fisher;
using testing::BothBackends;
using testing::eps;
using testing::near;
using testing::values;

class Inverse : public BothBackends {
 protected:
  struct Result {
    Vector matrix;
    std::int32_t info;
  };
  Result invert(const Vector& lower, std::int64_t d, double shift, DType dtype = DType::f64) {
    const Tensor m = tensor(ctx, lower, {ops::packed_size(d)}, dtype);
    Tensor out = Tensor::empty(ctx, {d, d}, dtype);
    ops::fill(ctx, out, kNan);
    std::int32_t info = -7;
    invert_factor(ctx, m, shift, out, view_of(&info, {1}));
    return {values(ctx, out), info};
  }
  struct Decomposition {
    Matrix vectors;
    Vector values;
    std::int32_t info;
  };
  Decomposition decompose(const Vector& lower, std::int64_t d, DType dtype = DType::f64) {
    const Tensor m = tensor(ctx, lower, {ops::packed_size(d)}, dtype);
    Tensor vectors = Tensor::empty(ctx, {d, d}, dtype), w = Tensor::empty(ctx, {d}, dtype);
    std::int32_t info = -7;
    decompose_factor(ctx, m, vectors, w, view_of(&info, {1}));
    Decomposition out{Matrix(d, d), values(ctx, w), info};
    out.vectors.v = values(ctx, vectors);
    return out;
  }
};
DKFAC_BOTH_BACKENDS(Inverse);

TEST(AverageWeight, EqualsTheBiasCorrectedMovingAverage) {
  Random random(1);
  for (const double w : {0.05, 0.5, 0.95, 1.0}) {
    const Vector statistics = random_vector(60, random);
    double average = kNan, moving = 0;
    for (std::int64_t t = 1; t <= 60; ++t) {
      const double statistic = statistics[static_cast<std::size_t>(t - 1)];
      const double weight = average_weight(w, t);
      average = weight == 1 ? statistic : (1 - weight) * average + weight * statistic;
      moving = (1 - w) * moving + w * statistic;
      const double corrected = moving / (1 - std::pow(1 - w, static_cast<double>(t)));
      // 16 t eps: t roundings of numbers below about 3, and the cancellation in 1 - (1-w)^t.
      EXPECT_NEAR(average, corrected, 16.0 * static_cast<double>(t) * eps<double> / w) << w;
    }
  }
}

TEST(AverageWeight, IsExactlyOneAtFirstAndTendsToTheGivenWeight) {
  for (const double w : {1e-6, 0.05, 0.3, 1.0}) EXPECT_EQ(average_weight(w, 1), 1) << w;
  EXPECT_EQ(average_weight(0.05, 1'000'000), 0.05);
  EXPECT_EQ(average_weight(1, 17), 1);
  EXPECT_NEAR(average_weight(1e-9, 4), 0.25, 1e-8);  // a plain mean at first
  EXPECT_THROW((void)average_weight(0, 1), InvalidArgument);
  EXPECT_THROW((void)average_weight(1.01, 1), InvalidArgument);
  EXPECT_THROW((void)average_weight(0.5, 0), InvalidArgument);
}

TEST(SplitDamping, BalancesMeanEigenvaluesAndKeepsTheProduct) {
  const DampingShifts split = split_damping(0.04, 12, 3, 8, 8).value();  // means 4 and 1: pi = 2
  EXPECT_NEAR(split.a, 0.4, 4 * eps<double>);
  EXPECT_NEAR(split.g, 0.1, 4 * eps<double>);
  for (const double scale : {1e-200, 1e-30, 1.0, 1e30, 1e200}) {
    const DampingShifts s = split_damping(1e-3, scale, 7, 3, 5).value();
    EXPECT_NEAR(s.a * s.g, 1e-3, 1e-3 * 8 * eps<double>) << scale;
  }
}

TEST(SplitDamping, FollowsTheFormulaOfEachRule) {
  Random random(6);
  const double root = std::sqrt(0.3);
  for (int trial = 0; trial < 100; ++trial) {
    const double ta = std::exp(9 * random.normal()), tg = std::exp(9 * random.normal());
    const std::int64_t da = 1 + 5 * trial, dg = 501 + 7 * trial;
    // Bitwise: runs from before the other rules existed continue unchanged.
    const double pi =
        std::sqrt(ta / static_cast<double>(da)) / std::sqrt(tg / static_cast<double>(dg));
    for (const DampingShifts& s : {*split_damping(0.3, ta, da, tg, dg),
                                   *split_damping({0.3, DampingSplit::pi}, ta, da, tg, dg)}) {
      EXPECT_EQ(s.a, pi * root);
      EXPECT_EQ(s.g, root / pi);
    }
    // The same share of both traces. 8 eps: a quotient and three roots.
    const DampingShifts equal = *split_damping({0.3, DampingSplit::equal_traces}, ta, da, tg, dg);
    EXPECT_NEAR(equal.a * equal.g, 0.3, 0.3 * 8 * eps<double>);
    EXPECT_NEAR((equal.a / ta) / (equal.g / tg), 1, 8 * eps<double>);
    // Control: not of the mean eigenvalues, as dg > da.
    EXPECT_LT((equal.a / ta * static_cast<double>(da)) / (equal.g / tg * static_cast<double>(dg)),
              1 - 1e-4);
    const DampingShifts constant = *split_damping({0.3, DampingSplit::constant}, ta, da, tg, dg);
    EXPECT_EQ(constant.a, root);
    EXPECT_EQ(constant.g, root);
  }
}

TEST(SplitDamping, FollowsAFactorThatMovesFromOneMatrixToTheOtherUnlessConstant) {
  for (const DampingSplit rule :
       {DampingSplit::pi, DampingSplit::equal_traces, DampingSplit::constant}) {
    const DampingShifts before = *split_damping({0.3, rule}, 5, 3, 7, 11);
    const DampingShifts after = *split_damping({0.3, rule}, 16 * 5, 3, 7.0 / 16, 11);
    const double moved = rule == DampingSplit::constant ? 1 : 16;
    EXPECT_NEAR(after.a / before.a, moved, 16 * 8 * eps<double>);
    EXPECT_NEAR(before.g / after.g, moved, 16 * 8 * eps<double>);
  }
}

TEST(SplitDamping, IsNothingWhereATraceIsNotPositive) {
  for (const auto& [ta, tg] :
       {std::pair(0.0, 1.0), {1.0, 0.0}, {0.0, 0.0}, {-1.0, 1.0}, {1.0, -1.0}, {-1.0, -1.0}})
    for (const DampingSplit rule :
         {DampingSplit::pi, DampingSplit::equal_traces, DampingSplit::constant})
      EXPECT_FALSE(split_damping({0.25, rule}, ta, 3, tg, 2)) << ta << " " << tg;
  EXPECT_TRUE(split_damping(0.25, 1, 3, 1e-300, 2));
  // Inverting with it reports the error.
  for (const auto& [ta, tg] : {std::pair(kNan, 1.0), {1.0, kInf}}) {
    const DampingShifts split = split_damping(0.25, ta, 3, tg, 2).value();
    EXPECT_EQ(split.a, 0.5) << ta << " " << tg;
    EXPECT_EQ(split.g, 0.5) << ta << " " << tg;
  }
  EXPECT_THROW((void)split_damping(0, 1, 1, 1, 1), InvalidArgument);
  EXPECT_THROW((void)split_damping(kNan, 1, 1, 1, 1), InvalidArgument);
  EXPECT_THROW((void)split_damping(1, 1, 0, 1, 1), InvalidArgument);
}

struct Inverses {
  Matrix a, g;
  std::array<std::int32_t, 2> info{-7, -7};
};
Inverses invert_both(Context& ctx, const Matrix& a, const Matrix& g, double lambda) {
  Inverses out{Matrix(a.rows, a.rows), Matrix(g.rows, g.rows)};
  const Vector pa = packed(a), pg = packed(g);
  invert_factors(ctx, view_of(pa.data(), {std::ssize(pa)}), view_of(pg.data(), {std::ssize(pg)}),
                 lambda, out.a.view(), out.g.view(), view_of(out.info.data(), {2}));
  return out;
}

TEST_P(Inverse, OfBothFactorsIsThatOfEachWithItsShift) {
  Random random(4);
  const Matrix a = random_spd(5, random), g = random_spd(3, random);
  const Inverses both = invert_both(ctx, a, g, 0.3);
  const DampingShifts split = split_damping(0.3, trace(a), 5, trace(g), 3).value();
  EXPECT_EQ(both.info, (std::array<std::int32_t, 2>{0, 0}));
  // A few ulp of the traces, which are summed in another way.
  EXPECT_TRUE(near(both.a.v, invert(packed(a), 5, split.a).matrix, 64 * 5 * eps<double>));
  EXPECT_TRUE(near(both.g.v, invert(packed(g), 3, split.g).matrix, 64 * 3 * eps<double>));
}

TEST_P(Inverse, OfAZeroFactorAndItsPartnerDividesByTheDamping) {
  Random random(5);
  const double lambda = 0.01;
  const Matrix some_a = random_spd(4, random), some_g = random_spd(3, random);
  const Matrix no_a(4, 4), no_g(3, 3), v = random_matrix(3, 4, random);
  for (const auto& [a, g] : {std::pair(some_a, no_g), {no_a, some_g}, {no_a, no_g}}) {
    const Inverses both = invert_both(ctx, a, g, lambda);
    EXPECT_EQ(both.info, (std::array<std::int32_t, 2>{0, 0}));
    Matrix u = v, expected = v;
    precondition(ctx, both.a.view(), both.g.view(), u.view(), {});
    for (double& x : expected.v) x /= lambda;
    // 8 eps: a root, two reciprocals and two products.
    EXPECT_TRUE(near(u.v, expected.v, 8 * eps<double>));
  }
  // Control: inverses of the two alone, each with the root of the damping, are another step.
  Matrix u = v, a_inverse(4, 4), g_inverse(3, 3);
  a_inverse.v = invert(packed(some_a), 4, std::sqrt(lambda)).matrix;
  g_inverse.v = invert(packed(no_g), 3, std::sqrt(lambda)).matrix;
  precondition(ctx, a_inverse.view(), g_inverse.view(), u.view(), {});
  Matrix expected = v;
  for (double& x : expected.v) x /= lambda;
  EXPECT_FALSE(near(u.v, expected.v, 0.1));
  // A NaN in the partner of a zero factor is reported.
  Matrix bad = some_g;
  bad(2, 1) = kNan;
  EXPECT_EQ(invert_both(ctx, no_a, bad, lambda).info, (std::array<std::int32_t, 2>{0, 3}));
}

TEST_P(Inverse, OfBothFactorsRefusesWrongArguments) {
  const Vector pa(6, 1.0), pg(3, 1.0);
  Matrix a(3, 3), g(2, 2);
  std::array<std::int32_t, 2> info{};
  const auto run = [&](TensorView a_inverse, double lambda, TensorView status) {
    invert_factors(ctx, view_of(pa.data(), {6}), view_of(pg.data(), {3}), lambda, a_inverse,
                   g.view(), status);
  };
  const TensorView status = view_of(info.data(), {2});
  EXPECT_NO_THROW(run(a.view(), 1, status));
  EXPECT_THROW(run(g.view(), 1, status), InvalidArgument);
  EXPECT_THROW(run(a.view(), 0, status), InvalidArgument);
  EXPECT_THROW(run(a.view(), kInf, status), InvalidArgument);
  EXPECT_THROW(run(a.view(), 1, status.slice(0, 0, 1)), InvalidArgument);
}

TEST_P(Inverse, EqualsAnEliminationInExtendedPrecision) {
  Random random(2);
  for (const std::int64_t d : {1, 2, 5, 33, 70}) {
    const Matrix m = random_spd(d, random);
    const Vector expected = inverse(plus_diagonal(m, 0.05)).v;
    const Result f64 = invert(packed(m), d, 0.05);
    EXPECT_EQ(f64.info, 0);
    // 64 d eps: the condition number is about 30.
    EXPECT_TRUE(near(f64.matrix, expected, 64 * static_cast<double>(d) * eps<double>)) << d;
    const Result f32 = invert(packed(m), d, 0.05, DType::f32);
    EXPECT_EQ(f32.info, 0);
    EXPECT_TRUE(near(f32.matrix, expected, 64 * static_cast<double>(d) * eps<float>)) << d;
    Matrix computed(d, d);
    computed.v = f64.matrix;
    EXPECT_EQ(computed.v, transpose(computed).v) << "not symmetric to the bit";
  }
}

TEST_P(Inverse, ReportsTheFirstBadMinor) {
  Matrix m = identity(6);
  m(3, 3) = -1;
  EXPECT_EQ(invert(packed(m), 6, 0).info, 4);
  EXPECT_EQ(invert(packed(m), 6, 2).info, 0);  // the shift repairs it
  EXPECT_EQ(invert(packed(Matrix(3, 3)), 3, 0).info, 1);
  // 8 eps: a root, its reciprocal and a square.
  EXPECT_TRUE(near(invert(packed(Matrix(3, 3)), 3, 0.5).matrix, identity(3, 2).v, 8 * eps<double>));
}

TEST_P(Inverse, ReportsTheFirstRowThatIsNotFinite) {
  for (const double bad : {kNan, kInf, -kInf}) {
    for (const DType dtype : {DType::f64, DType::f32}) {
      Matrix m = identity(6);
      m(4, 1) = bad;
      const Result result = invert(packed(m), 6, 1, dtype);
      EXPECT_EQ(result.info, 5);
      // No solver was called: the result is unchanged.
      for (const double e : result.matrix) EXPECT_TRUE(std::isnan(e));
      EXPECT_EQ(decompose(packed(m), 6, dtype).info, 5);
    }
  }
}

TEST_P(Inverse, ReportsAnInverseThatOverflows) {
  Matrix m = identity(3);
  m(1, 1) = 1e-310;
  EXPECT_GT(invert(packed(m), 3, 0).info, 0);
  m(1, 1) = 1e-300;
  EXPECT_EQ(invert(packed(m), 3, 0).info, 0);
}

TEST_P(Inverse, WrongArgumentsAreRefused) {
  const Vector m = packed(identity(3));
  Matrix out(3, 3), wrong(3, 2);
  Vector w(3);
  std::int32_t info = 0;
  float not_info = 0;
  const auto packed_view = view_of(m.data(), {6});
  const auto status = view_of(&info, {1});
  EXPECT_THROW(invert_factor(ctx, packed_view, -1, out.view(), status), InvalidArgument);
  EXPECT_THROW(invert_factor(ctx, packed_view, kNan, out.view(), status), InvalidArgument);
  EXPECT_THROW(invert_factor(ctx, packed_view, 1, wrong.view(), status), InvalidArgument);
  EXPECT_THROW(invert_factor(ctx, packed_view, 1, out.view().flat(), status), InvalidArgument);
  EXPECT_THROW(invert_factor(ctx, packed_view.slice(0, 0, 5), 1, out.view(), status),
               InvalidArgument);
  EXPECT_THROW(invert_factor(ctx, packed_view, 1, out.view(), view_of(&not_info, {1})),
               InvalidArgument);
  EXPECT_THROW(decompose_factor(ctx, packed_view, out.view(), view_of(w.data(), {2}), status),
               InvalidArgument);
}

TEST_P(Inverse, DecompositionRebuildsTheFactor) {
  Random random(3);
  for (const DType dtype : {DType::f64, DType::f32}) {
    const double unit = dtype == DType::f64 ? eps<double> : eps<float>;
    for (const std::int64_t d : {1, 2, 7, 40}) {
      const Matrix m = random_spd(d, random);
      const Decomposition q = decompose(packed(m), d, dtype);
      ASSERT_EQ(q.info, 0);
      EXPECT_TRUE(std::is_sorted(q.values.begin(), q.values.end()));
      Matrix scaled = q.vectors;
      for (std::int64_t r = 0; r < d; ++r) {
        for (std::int64_t c = 0; c < d; ++c) scaled(r, c) *= q.values[static_cast<std::size_t>(c)];
      }
      // 32 d eps: backward error of a symmetric eigensolver.
      const double tolerance = 32 * static_cast<double>(d) * unit;
      EXPECT_TRUE(near(multiply(scaled, transpose(q.vectors)).v, m.v, tolerance)) << d;
      EXPECT_TRUE(near(multiply(transpose(q.vectors), q.vectors).v, identity(d).v, tolerance));
    }
  }
}

TEST_P(Inverse, DecompositionClipsNegativeEigenvalues) {
  Matrix m = identity(4, 3);
  m(2, 2) = -2;
  const Decomposition q = decompose(packed(m), 4);
  EXPECT_EQ(q.info, 0);
  EXPECT_EQ(q.values[0], 0);
  for (std::size_t i = 1; i < 4; ++i) EXPECT_NEAR(q.values[i], 3, 32 * eps<double>);
}

}  // namespace
}  // namespace dkfac::kfac
