#include "kfac/inverse/robust_inverse.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/random.h"

#include "kfac/inverse/residual.h"
#include "kfac/null_signs.h"
#include "support/fisher.h"
#include "support/not_finite.h"
#include "support/on_device.h"

// The fallback stages on the device, reached by matrices that need them and by failing solvers,
// against the host.
namespace dkfac::kfac {
namespace {

using namespace dkfac::testing::fisher;
using dkfac::testing::device_values;
using dkfac::testing::near;
using dkfac::testing::OnDevice;
using dkfac::testing::values;
using dkfac::testing::without_the_signs;

void fail(Context& ctx, TensorView, TensorView info) { ops::fill(ctx, info, 1); }
void fail_eigh(Context& ctx, TensorView, TensorView, TensorView info) { ops::fill(ctx, info, 1); }
/// A good status of an inverse that is wrong by a third.
void invert_wrongly(Context& ctx, TensorView a, TensorView info) {
  ops::potri(ctx, a, info);
  ops::axpby(ctx, 0.3, Tensor::copy_of(ctx, a), 1, a);
}

class DeviceRobustInverse : public OnDevice {
 protected:
  struct Result {
    InverseResult result;
    Vector inverse, values;
  };
  Result run(Context& where, const FactorForm* form, const Matrix& m, double shift,
             const Solvers& solvers = {}) {
    const bool rows = form == FactorForm::low_rank;
    const std::int64_t d = m.cols;
    const Tensor host = rows ? tensor(cpu, m.v, {m.rows, d}, dtype())
                             : tensor(cpu, packed(m), {ops::packed_size(d)}, dtype());
    const Tensor average = Tensor::copy_of(where, host);
    Tensor inverse = Tensor::empty(where, {m.rows, d}, dtype());
    Tensor eigenvalues = Tensor::zeros(where, {d}, dtype());
    ops::fill(where, inverse, 7);
    Result out;
    out.result = rebuild_inverse(where, {form, average, inverse, eigenvalues}, shift, solvers);
    out.inverse = device_values(where, inverse);
    out.values = device_values(where, eigenvalues);
    if (out.result.stage == InverseStage::kept) {
      for (const double x : out.inverse) EXPECT_EQ(x, 7) << "written to";
    }
    return out;
  }
  /// The result on the device, after checking that the host gets the same.
  InverseResult expect_alike(const FactorForm* form, const Matrix& m, double shift, double bound) {
    const Result expected = run(cpu, form, m, shift), actual = run(ctx, form, m, shift);
    EXPECT_EQ(actual.result.stage, expected.result.stage);
    EXPECT_EQ(actual.result.shift, expected.result.shift);
    EXPECT_EQ(actual.result.form, expected.result.form);
    EXPECT_TRUE(near(actual.inverse, expected.inverse, bound));
    return actual.result;
  }
};
DKFAC_ON_DEVICE(DeviceRobustInverse);

TEST_P(DeviceRobustInverse, TakesTheStagesOfTheHost) {
  Random random(1);
  const Matrix m = random_spd(9, random);
  EXPECT_EQ(expect_alike(FactorForm::inverse, m, 0.125, tolerance()).stage, InverseStage::damped);
  Matrix indefinite = identity(6, 2);
  indefinite(4, 4) = -0.05;
  EXPECT_EQ(expect_alike(FactorForm::inverse, indefinite, 0.015625, tolerance()).stage,
            InverseStage::more_damped);
  indefinite(4, 4) = -5;
  EXPECT_EQ(expect_alike(FactorForm::inverse, indefinite, 0.125, tolerance()).stage,
            InverseStage::clipped);
  Matrix nan = m;
  nan(2, 1) = kNan;
  EXPECT_EQ(expect_alike(FactorForm::inverse, nan, 0.125, 0).stage, InverseStage::kept);
  const Matrix rows = random_matrix(4, 30, random);
  EXPECT_EQ(expect_alike(FactorForm::low_rank, rows, 0.125, tolerance()).stage,
            InverseStage::damped);
}

TEST_P(DeviceRobustInverse, TurnsToDoublePrecisionBeforeEigenvectors) {
  // 1024 plus 2^-24 is 1024 in f32, with ten times as well.
  Matrix ones(8, 8);
  for (double& x : ones.v) x = 1024;
  const InverseResult result = run(ctx, FactorForm::inverse, ones, std::ldexp(1.0, -24)).result;
  EXPECT_EQ(result.stage, dtype() == DType::f32 ? InverseStage::f64 : InverseStage::damped);
}

TEST_P(DeviceRobustInverse, SurvivesSolversThatFail) {
  Random random(2);
  const Matrix m = random_spd(7, random);
  const Vector expected = run(ctx, FactorForm::inverse, m, 0.5).inverse;
  const auto stage = [&](const FactorForm* form, const Solvers& solvers) {
    return run(ctx, form, m, 0.5, solvers).result.stage;
  };
  const Result clipped = run(ctx, FactorForm::inverse, m, 0.5, {.potrf = fail});
  EXPECT_EQ(clipped.result.stage, InverseStage::clipped);
  EXPECT_TRUE(near(clipped.inverse, expected, tolerance()));
  EXPECT_EQ(stage(FactorForm::inverse, {.potri = fail}), InverseStage::clipped);
  EXPECT_EQ(stage(FactorForm::inverse, {.potri = invert_wrongly}), InverseStage::clipped);
  EXPECT_EQ(stage(FactorForm::inverse, {.potrf = fail, .eigh = fail_eigh}), InverseStage::kept);
  EXPECT_EQ(stage(FactorForm::eigen, {.eigh = fail_eigh}), InverseStage::kept);
  EXPECT_EQ(stage(FactorForm::eigen, {}), InverseStage::damped);
  const Matrix rows = random_matrix(3, 7, random);
  EXPECT_EQ(run(ctx, FactorForm::low_rank, rows, 0.5, {.potrf = fail}).result.stage,
            InverseStage::clipped);
}

TEST_P(DeviceRobustInverse, ClipsEigenvaluesAsTheHostDoes) {
  Matrix m = identity(5, 3);
  m(1, 1) = -0.5;
  const Result expected = run(cpu, FactorForm::eigen, m, 0.1),
               actual = run(ctx, FactorForm::eigen, m, 0.1);
  EXPECT_EQ(actual.result.stage, InverseStage::clipped);
  EXPECT_EQ(expected.result.stage, InverseStage::clipped);
  EXPECT_TRUE(near(actual.values, expected.values, tolerance()));
}

TEST_P(DeviceRobustInverse, TheCheckSeesWhatTheHostSees) {
  Random random(3);
  const std::int64_t d = 12;
  const Matrix m = random_spd(d, random);
  const Tensor average = tensor(cpu, packed(m), {ops::packed_size(d)}, dtype());
  const Tensor there = Tensor::copy_of(ctx, average);
  Tensor inverse = Tensor::empty(cpu, {d, d}, dtype());
  std::int32_t info = 0;
  ops::unpack_lower(cpu, average, inverse, ops::Upper::untouched);
  ops::add_diagonal(cpu, inverse, 0.5);
  ops::potrf(cpu, inverse, view_of(&info, {1}));
  ops::potri(cpu, inverse, view_of(&info, {1}));
  const auto good = [&](double shift, ConstTensorView x) {
    const bool here = inverts(cpu, {average, shift}, x);
    EXPECT_EQ(inverts(ctx, {there, shift}, Tensor::copy_of(ctx, x)), here);
    return here;
  };
  EXPECT_TRUE(good(0.5, inverse));
  EXPECT_FALSE(good(500, inverse));
  Tensor wrong = Tensor::copy_of(cpu, inverse);
  ops::fill(cpu, wrong.view().slice(0, 7, 1).slice(1, 3, 1), kNan);
  EXPECT_FALSE(good(0.5, wrong));
  ops::fill(cpu, wrong, 0);
  EXPECT_FALSE(good(0.5, wrong));
}

TEST_P(DeviceRobustInverse, AGoodDecompositionIsOneWhereTheSignsAreANullVector) {
  Random random(4);
  for (const std::int64_t d : {3, 8, 40}) {
    const Matrix m = without_the_signs(d, random);
    const Tensor average =
        Tensor::copy_of(ctx, tensor(cpu, packed(m), {ops::packed_size(d)}, dtype()));
    Tensor q = Tensor::empty(ctx, {d, d}, dtype()), w = Tensor::empty(ctx, {d}, dtype());
    const FactorGroup block{FactorForm::eigen, average, q, w};
    EXPECT_EQ(rebuild_inverse(ctx, block, 1).stage, InverseStage::damped) << d;
    EXPECT_TRUE(decomposes(ctx, average, q, w)) << d;
    // Control: 1 % of the trace, where M z does not show the size of M.
    ops::fill(ctx, w.view().slice(0, 0, 1), 0.01 * trace(m));
    EXPECT_FALSE(decomposes(ctx, average, q, w)) << d;
  }
}

TEST_P(DeviceRobustInverse, InvertsTheIdentity) {
  for (const FactorForm* form : {FactorForm::inverse, FactorForm::low_rank}) {
    Tensor inverse = Tensor::empty(ctx, {4, 4}, dtype());
    const InverseResult result = invert_identity(ctx, {form, {}, inverse, {}}, 0.25);
    EXPECT_EQ(result.stage, InverseStage::damped);
    const Vector expected = form == FactorForm::inverse ? identity(4, 4).v : Vector(16, 0.0);
    EXPECT_EQ(device_values(ctx, inverse), expected);
  }
}

}  // namespace
}  // namespace dkfac::kfac
