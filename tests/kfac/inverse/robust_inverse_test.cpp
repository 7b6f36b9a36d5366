#include "kfac/inverse/robust_inverse.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/kfac/inverse.h"

#include "kfac/inverse/apply_factor.h"
#include "kfac/inverse/block_triangular.h"
#include "kfac/inverse/residual.h"
#include "support/both_backends.h"
#include "support/fisher.h"
#include "support/near.h"
#include "support/not_finite.h"

// Every stage of the robust inversion (D10), reached by matrices that need it, or by failing
// solvers.
namespace dkfac::kfac {
namespace {

using namespace testing::fisher;
using testing::BothBackends;
using testing::eps;
using testing::near;
using testing::values;

void fail_always(Context&, TensorView, TensorView info) { *info.data<std::int32_t>() = 1; }
void fail_eigh(Context&, TensorView, TensorView, TensorView info) {
  *info.data<std::int32_t>() = 1;
}
void fail_in_f32(Context& ctx, TensorView a, TensorView w, TensorView info) {
  if (a.dtype() == DType::f32) return fail_eigh(ctx, a, w, info);
  ops::eigh(ctx, a, w, info);
}
/// An inverse with a good status that is wrong by `kFactor`: what LU in f32 may return (D7).
constexpr double kFactor = 1.3;
void invert_wrongly(Context& ctx, TensorView a, TensorView info) {
  ops::potri(ctx, a, info);
  ops::axpby(ctx, kFactor - 1, Tensor::copy_of(ctx, a), 1, a);
}

/// Q diag(w) Q' with the reflection Q = I - 2 u u', u along (1, 2, ..., n).
Matrix of_spectrum(const Vector& w) {
  const auto n = static_cast<std::int64_t>(w.size());
  Vector u(w.size());
  double square = 0;
  for (std::size_t i = 0; i < u.size(); ++i)
    square += std::pow(u[i] = 1 + static_cast<double>(i), 2);
  Matrix q = identity(n), m(n, n);
  add_outer(q, u, -2 / square);
  for (std::size_t i = 0; i < w.size(); ++i)
    add_outer(m, q.row(static_cast<std::int64_t>(i)), w[i]);
  return m;
}
Vector shifted(Vector w, double shift, double least = -1e300) {
  for (double& x : w) x = std::max(x, least) + shift;
  return w;
}
Vector reciprocal(Vector w) {
  for (double& x : w) x = 1 / x;
  return w;
}

class RobustInverse : public BothBackends {
 protected:
  struct Result {
    InverseResult result;
    Matrix inverse;  ///< Dense, whatever the form.
  };
  /// Runs the robust inversion on M (or on rows) and applies the result to the identity.
  Result run(const FactorForm* form, const Matrix& m, double shift, DType dtype,
             const Solvers& solvers = {}) {
    const bool rows = form == FactorForm::low_rank;
    const std::int64_t d = m.cols;
    const Tensor average = rows ? tensor(ctx, m.v, {m.rows, d}, dtype)
                                : tensor(ctx, packed(m), {ops::packed_size(d)}, dtype);
    Tensor inverse = Tensor::empty(ctx, {rows ? m.rows : d, d}, dtype);
    ops::fill(ctx, inverse, 7);
    Tensor eigenvalues = Tensor::zeros(ctx, {d}, dtype);
    const FactorGroup block{form, average, inverse, eigenvalues};
    Result out{rebuild_inverse(ctx, block, shift, solvers), {}};
    if (out.result.stage == InverseStage::kept) {
      for (const double x : values(ctx, inverse)) EXPECT_EQ(x, 7) << "written to";
      return out;
    }
    if (form == FactorForm::eigen) {
      Matrix q(d, d);
      q.v = values(ctx, inverse);
      out.inverse =
          multiply(multiply(q, diagonal(reciprocal(shifted(values(ctx, eigenvalues), shift)))),
                   transpose(q));
      return out;
    }
    Tensor all = tensor(ctx, identity(d).v, {d, d}, dtype);
    apply_left(ctx, {out.result.form, inverse, out.result.shift}, {all.view(), {}});
    out.inverse = Matrix(d, d);
    out.inverse.v = values(ctx, all);
    return out;
  }
  static Matrix diagonal(const Vector& w) {
    Matrix m = identity(static_cast<std::int64_t>(w.size()));
    for (std::int64_t i = 0; i < m.rows; ++i) m(i, i) = w[static_cast<std::size_t>(i)];
    return m;
  }
};
DKFAC_BOTH_BACKENDS(RobustInverse);

const FactorForm* const kSquareForms[] = {FactorForm::inverse, FactorForm::cholesky};
constexpr DType kTypes[] = {DType::f32, DType::f64};

TEST_P(RobustInverse, KeepsTheRequestedDampingWhereItIsEnough) {
  const Vector w{0.1, 0.5, 1, 2, 3, 4};
  for (const DType dtype : kTypes) {
    const double unit = dtype == DType::f64 ? eps<double> : eps<float>;
    for (const FactorForm* form : {FactorForm::inverse, FactorForm::cholesky, FactorForm::eigen}) {
      const Result result = run(form, of_spectrum(w), 0.125, dtype);
      EXPECT_EQ(result.result.stage, InverseStage::damped);
      EXPECT_EQ(result.result.form, form);
      // 64 d eps: the condition is 18.
      EXPECT_TRUE(
          near(result.inverse.v, of_spectrum(reciprocal(shifted(w, 0.125))).v, 64 * 6 * unit));
    }
  }
}

TEST_P(RobustInverse, DampsTenTimesMoreNext) {
  const Vector w{-0.05, 0.5, 1, 2, 3, 4};  // with 1/64: not positive, with 10/64: positive
  for (const DType dtype : kTypes) {
    const double unit = dtype == DType::f64 ? eps<double> : eps<float>;
    for (const FactorForm* form : kSquareForms) {
      const Result result = run(form, of_spectrum(w), 0.015625, dtype);
      EXPECT_EQ(result.result.stage, InverseStage::more_damped);
      EXPECT_EQ(result.result.shift, 0.15625);
      EXPECT_TRUE(
          near(result.inverse.v, of_spectrum(reciprocal(shifted(w, 0.15625))).v, 64 * 6 * unit));
    }
  }
}

TEST_P(RobustInverse, TurnsToDoublePrecisionBeforeEigenvectors) {
  // Ones times 1024 plus 2^-24: the sum is 1024 in f32, ten times as well.
  const std::int64_t d = 8;
  Matrix ones(d, d);
  for (double& x : ones.v) x = 1024;
  const double shift = std::ldexp(1.0, -24);
  Matrix expected = identity(d, 1 / shift);  // (I - ones / (d + shift / 1024)) / shift
  for (double& x : expected.v) x -= 1 / shift / (static_cast<double>(d) + shift / 1024);
  for (const FactorForm* form : kSquareForms) {
    const Result result = run(form, ones, shift, DType::f32);
    EXPECT_EQ(result.result.stage, InverseStage::f64);
    EXPECT_EQ(result.result.shift, shift);
    // A Cholesky factor could not be rounded to f32 without losing the shift.
    EXPECT_EQ(result.result.form, FactorForm::inverse);
    // Rounding to f32, and d eps times the condition in f64.
    EXPECT_TRUE(
        near(result.inverse.v, expected.v, 4 * eps<float> + 8 * eps<double> * 8 * 1024 / shift));
    // In f64 the first stage suffices.
    EXPECT_EQ(run(form, ones, shift, DType::f64).result.stage, InverseStage::damped);
  }
  // The same matrix as rows: two of them, 64 each.
  Matrix rows(2, d);
  for (double& x : rows.v) x = std::sqrt(512.0);
  const Result result = run(FactorForm::low_rank, rows, shift, DType::f32);
  EXPECT_EQ(result.result.stage, InverseStage::f64);
  EXPECT_TRUE(
      near(result.inverse.v, expected.v, 8 * eps<float> + 8 * eps<double> * 8 * 1024 / shift));
}

TEST_P(RobustInverse, ClipsEigenvaluesInTheEnd) {
  const Vector w{-1, 0.5, 1, 2, 3, 4};
  for (const DType dtype : kTypes) {
    const double unit = dtype == DType::f64 ? eps<double> : eps<float>;
    for (const FactorForm* form : {FactorForm::inverse, FactorForm::cholesky, FactorForm::eigen}) {
      const Result result = run(form, of_spectrum(w), 0.015625, dtype);
      EXPECT_EQ(result.result.stage, InverseStage::clipped) << form->name;
      // 64 d eps times the condition of the vectors' part, relative to the largest, 64.
      EXPECT_TRUE(near(result.inverse.v, of_spectrum(reciprocal(shifted(w, 0.015625, 0))).v,
                       64 * 6 * unit));
    }
  }
}

TEST_P(RobustInverse, GetsToEigenvectorsWhenCholeskyFails) {
  Random random(1);
  const Solvers broken{.potrf = fail_always};
  const Matrix rows = random_matrix(3, 7, random);
  const Matrix expected = inverse(plus_diagonal(second_moment(rows, 1), 0.25));
  // 64 d eps times the condition, at most 1 + trace / 0.25.
  const double tolerance = 64 * 7 * eps<double> * (1 + trace(second_moment(rows, 1)) / 0.25);
  for (const FactorForm* form : kSquareForms) {
    const Result result = run(form, second_moment(rows, 1), 0.25, DType::f64, broken);
    EXPECT_EQ(result.result.stage, InverseStage::clipped);
    EXPECT_TRUE(near(result.inverse.v, expected.v, tolerance));
  }
  const Result low = run(FactorForm::low_rank, rows, 0.25, DType::f64, broken);
  EXPECT_EQ(low.result.stage, InverseStage::clipped);
  EXPECT_TRUE(near(low.inverse.v, expected.v, tolerance));
}

TEST_P(RobustInverse, KeepsTheOldInverseWhenAllElseFails) {
  const Solvers broken{.potrf = fail_always, .eigh = fail_eigh};
  for (const DType dtype : kTypes) {
    for (const FactorForm* form : {FactorForm::inverse, FactorForm::cholesky, FactorForm::eigen}) {
      EXPECT_EQ(run(form, identity(5), 1, dtype, broken).result.stage, InverseStage::kept);
      // Not finite: shown to no solver.
      for (const double bad : {kNan, std::numeric_limits<double>::infinity()}) {
        Matrix m = identity(5);
        m(3, 1) = m(1, 3) = bad;
        EXPECT_EQ(run(form, m, 1, dtype).result.stage, InverseStage::kept);
      }
      if (form == FactorForm::eigen) continue;
      // A damping below the rounding of f64, and one that is not finite in f32.
      Matrix ones(4, 4);
      for (double& x : ones.v) x = 1;
      EXPECT_EQ(run(form, ones, 1e-30, dtype).result.stage, InverseStage::kept);
    }
  }
  EXPECT_EQ(run(FactorForm::inverse, identity(5), 1e50, DType::f32).result.stage,
            InverseStage::kept);
  EXPECT_EQ(run(FactorForm::low_rank, identity(5), 1, DType::f64, broken).result.stage,
            InverseStage::kept);
}

TEST_P(RobustInverse, RepeatsAFailedDecompositionInDoublePrecision) {
  const Vector w{0.5, 1, 2, 3};
  const Result result =
      run(FactorForm::eigen, of_spectrum(w), 0.5, DType::f32, {.eigh = fail_in_f32});
  EXPECT_EQ(result.result.stage, InverseStage::f64);
  EXPECT_TRUE(
      near(result.inverse.v, of_spectrum(reciprocal(shifted(w, 0.5))).v, 64 * 4 * eps<float>));
  EXPECT_EQ(
      run(FactorForm::eigen, of_spectrum(w), 0.5, DType::f64, {.eigh = fail_eigh}).result.stage,
      InverseStage::kept);
}

TEST_P(RobustInverse, DoesNotTrustAStatusAlone) {
  const Vector w{0.5, 1, 2, 3, 4};
  const Result result =
      run(FactorForm::inverse, of_spectrum(w), 0.5, DType::f32, {.potri = invert_wrongly});
  EXPECT_EQ(result.result.stage, InverseStage::clipped);
  EXPECT_TRUE(
      near(result.inverse.v, of_spectrum(reciprocal(shifted(w, 0.5))).v, 64 * 5 * eps<float>));
}

TEST_P(RobustInverse, InvertsTheIdentityOfALayerWithoutCurvature) {
  for (const FactorForm* form : {FactorForm::inverse, FactorForm::cholesky, FactorForm::low_rank}) {
    Tensor block = Tensor::empty(ctx, {70, 70}, DType::f64);
    ops::fill(ctx, block, 7);
    const InverseResult result = invert_identity(ctx, {form, {}, block, {}}, 0.25);
    EXPECT_EQ(result.stage, InverseStage::damped);
    Matrix all = identity(70);
    apply_left(ctx, {result.form, block, result.shift}, {all.view(), {}});
    EXPECT_EQ(all.v, identity(70, 4).v);
    EXPECT_EQ(invert_identity(ctx, {form, {}, block, {}}, 1e-310).stage, InverseStage::kept);
  }
  Tensor f32 = Tensor::zeros(ctx, {3, 3});
  EXPECT_EQ(invert_identity(ctx, {FactorForm::inverse, {}, f32, {}}, 1e-45).stage,
            InverseStage::kept);
  EXPECT_EQ(invert_identity(ctx, {FactorForm::inverse, {}, f32, {}}, 1e45).stage,
            InverseStage::kept);
}

TEST_P(RobustInverse, FactorsAboveZeroBlocksKeepTheirBlocks) {
  // What is above the diagonal blocks of a Cholesky form is neither read nor written.
  Random random(3);
  const std::int64_t d = 75;
  const Matrix m = random_spd(d, random);
  const Tensor average = tensor(ctx, packed(m), {ops::packed_size(d)});
  Tensor l = Tensor::empty(ctx, {d, d}, DType::f64);
  ops::fill(ctx, l, kNan);
  ASSERT_EQ(rebuild_inverse(ctx, {FactorForm::cholesky, average, l, {}}, 0.1).stage,
            InverseStage::damped);
  Matrix v = random_matrix(d, 3, random);
  const Matrix expected = multiply(inverse(plus_diagonal(m, 0.1)), v);
  apply_left(ctx, {FactorForm::cholesky, l, 0.1}, {v.view(), {}});
  EXPECT_TRUE(near(v.v, expected.v, 64 * 75 * eps<double>));
  EXPECT_TRUE(std::isnan(values(ctx, l)[static_cast<std::size_t>(d - 1)]));
}

// --- the check
// -------------------------------------------------------------------------------------

TEST_P(RobustInverse, CheckTellsGoodInversesFromBadOnes) {
  Random random(4);
  const std::int64_t d = 40;
  const Matrix m = random_spd(d, random);
  const Tensor average = tensor(ctx, packed(m), {ops::packed_size(d)});
  Matrix x = inverse(plus_diagonal(m, 0.1));
  const auto good = [&](const Matrix& result) {
    return inverts(ctx, {average, 0.1}, result.view());
  };
  EXPECT_TRUE(good(x));
  for (const double factor : {0.0, 0.7, 1.3, 4.0, -1.0}) {
    Matrix wrong = x;
    for (double& e : wrong.v) e *= factor;
    EXPECT_FALSE(good(wrong)) << factor;
  }
  Matrix nan = x;
  nan(7, 3) = kNan;
  EXPECT_FALSE(good(nan));
  Matrix missing = x;  // two rows of nothing
  for (std::int64_t c = 0; c < d; ++c)
    missing(5, c) = missing(c, 5) = missing(6, c) = missing(c, 6) = 0;
  EXPECT_FALSE(good(missing));
  EXPECT_FALSE(inverts(ctx, {average, 0.5}, x.view())) << "another shift";
}

/// Largest error of the form's product with a vector, against a solution in extended precision.
double error_of(Context& ctx, const AppliedFactor& factor, const Matrix& m, Random& random) {
  double worst = 0;
  for (int trial = 0; trial < 2; ++trial) {
    const Vector z = random_vector(m.rows, random);
    Tensor x = tensor(ctx, z, {m.rows, 1}, factor.inverse.dtype());
    apply_left(ctx, factor, {x.view(), {}});
    const Vector rounded = values(ctx, tensor(ctx, z, {m.rows}, factor.inverse.dtype()));
    worst = std::max(worst,
                     relative_norm(values(ctx, x), solve(plus_diagonal(m, factor.shift), rounded)));
  }
  return worst;
}

// D7: damping from 1e-12 to 1e12 beside matrices of rank n/8 in f32, down to width 1.
TEST_P(RobustInverse, D7InversesAreRightOrRefusedAtEveryDamping) {
  Random random(5);
  for (const std::int64_t n : {1, 8, 64, 120}) {
    const Matrix rows = random_matrix(std::max<std::int64_t>(n / 8, 1), n, random, 3);
    const Tensor average = tensor(ctx, packed(second_moment(rows, static_cast<double>(rows.rows))),
                                  {ops::packed_size(n)}, DType::f32);
    Matrix m(n, n);  // as rounded
    const Vector rounded = values(ctx, average);
    for (std::int64_t r = 0, i = 0; r < n; ++r)
      for (std::int64_t c = 0; c <= r; ++c)
        m(r, c) = m(c, r) = rounded[static_cast<std::size_t>(i++)];
    for (int power = -12; power <= 12; power += 2) {
      const double shift = std::pow(10.0, power);
      for (const FactorForm* form : kSquareForms) {
        Tensor inverse = Tensor::empty(ctx, {n, n});
        const InverseResult result = rebuild_inverse(ctx, {form, average, inverse, {}}, shift);
        SCOPED_TRACE(detail::concat("n ", n, ", shift ", shift, ", form ", form->name, ", stage ",
                                    static_cast<int>(result.stage)));
        if (result.stage == InverseStage::kept) {
          // Only where f64 is not sufficient: shift below n eps trace.
          EXPECT_LT(shift, static_cast<double>(n) * eps<double> * trace(m));
          continue;
        }
        if (result.stage == InverseStage::clipped) {
          // Rounding to f32 has made M indefinite; nothing is larger than 1/shift.
          for (const double x : values(ctx, inverse)) EXPECT_LE(std::abs(x), 1.001 / shift);
          continue;
        }
        // The bar of the check is 0.1 for its own two vectors; twice that for others.
        EXPECT_LE(error_of(ctx, {result.form, inverse, result.shift}, m, random), 0.2);
      }
    }
  }
}

TEST_P(RobustInverse, D7HasSomethingToRefuse) {
  // Control of the test above: some results with a good status are far off.
  Random random(6);
  const std::int64_t n = 64;
  double worst = 0, worst_accepted = 0;
  for (int trial = 0; trial < 8; ++trial) {
    const Matrix m = second_moment(random_matrix(n / 8, n, random, 3), 8);
    const Tensor average = tensor(ctx, packed(m), {ops::packed_size(n)}, DType::f32);
    Matrix rounded = m;
    for (double& x : rounded.v) x = static_cast<float>(x);
    for (double shift = 1e-3; shift > 1e-7; shift *= 0.7) {
      Tensor plain = Tensor::empty(ctx, {n, n});
      std::int32_t info = 0;
      const double used = static_cast<float>(shift);
      invert_factor(ctx, average, used, plain, view_of(&info, {1}));
      if (info != 0) break;
      const double error = error_of(ctx, {FactorForm::inverse, plain, used}, rounded, random);
      worst = std::max(worst, error);
      if (inverts(ctx, {average, used}, plain)) worst_accepted = std::max(worst_accepted, error);
    }
  }
  EXPECT_GT(worst, 0.3);
  EXPECT_LE(worst_accepted, 0.2);
}

}  // namespace
}  // namespace dkfac::kfac
