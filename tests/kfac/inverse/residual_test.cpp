#include "kfac/inverse/residual.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "kfac/inverse/robust_inverse.h"
#include "kfac/null_signs.h"
#include "support/both_backends.h"
#include "support/fisher.h"
#include "support/near.h"

// Wrong results with a status of 0, and the fallback stages for solvers that return them.
namespace dkfac::kfac {
namespace {

using namespace testing::fisher;
using testing::BothBackends;
using testing::near;
using testing::values;
using testing::without_the_signs;

class Residual : public BothBackends {};
DKFAC_BOTH_BACKENDS(Residual);

/// The first reflection I - 2 u u' / u'u along (1, 2, ..., n); its rows are eigenvectors.
Matrix reflection(std::int64_t n) {
  Vector u(static_cast<std::size_t>(n));
  double square = 0;
  for (std::size_t i = 0; i < u.size(); ++i)
    square += std::pow(u[i] = 1 + static_cast<double>(i), 2);
  Matrix q = identity(n);
  add_outer(q, u, -2 / square);
  return q;
}
Matrix with_spectrum(const Matrix& q, const Vector& w) {
  Matrix m(q.rows, q.rows);
  for (std::int64_t i = 0; i < q.rows; ++i) add_outer(m, q.row(i), w[static_cast<std::size_t>(i)]);
  return m;
}

// D7: one direction without curvature among 512, where 1/shift is the whole of the inverse but next
// to nothing of the residual.
TEST_P(Residual, D7AnErrorInOneNullDirectionIsSeen) {
  const std::int64_t n = 512;
  const double shift = 0x1p-25;
  const Matrix q = reflection(n);
  Vector w(static_cast<std::size_t>(n)), x(w.size());
  for (std::size_t i = 0; i < w.size(); ++i) {
    w[i] = i == 0 ? 0 : 0.2 + static_cast<double>(i) / static_cast<double>(n);
    x[i] = 1 / (w[i] + shift);
  }
  const Tensor average =
      tensor(ctx, packed(with_spectrum(q, w)), {ops::packed_size(n)}, DType::f64);
  const auto good = [&](double factor) {
    Vector wrong = x;
    wrong[0] *= factor;
    return inverts(ctx, {average, shift}, with_spectrum(q, wrong).view());
  };
  EXPECT_TRUE(good(1));
  EXPECT_TRUE(good(1.01));
  for (const double factor : {0.2, 0.48, 0.7, 1.3, 1.52, 3.0}) EXPECT_FALSE(good(factor)) << factor;
}

TEST_P(Residual, DecompositionsThatDoNotRebuildTheMatrixAreSeen) {
  const Matrix q = reflection(6);
  const Vector w{0.1, 0.5, 1, 2, 3, 4};
  const Tensor average = tensor(ctx, packed(with_spectrum(q, w)), {ops::packed_size(6)});
  const auto good = [&](const Matrix& vectors, const Vector& values) {
    return decomposes(ctx, average, vectors.view(), view_of(values.data(), {6}));
  };
  // The reflection is symmetric: rows and columns are the same vectors.
  EXPECT_TRUE(good(q, w));
  Vector wrong = w;
  wrong[5] *= 1.5;
  EXPECT_FALSE(good(q, wrong));
  EXPECT_FALSE(good(identity(6), w));
  // Right products of vectors that are not orthonormal: one is longer and its value smaller, or it
  // has no value at all; and a sum of a vector without a value and another.
  for (const std::size_t i : {1U, 5U}) {
    Matrix longer = q;
    for (std::int64_t r = 0; r < 6; ++r) longer(r, static_cast<std::int64_t>(i)) *= 1.2;
    wrong = w;
    wrong[i] /= 1.44;
    EXPECT_FALSE(good(longer, wrong)) << i;
  }
  const Vector null{0, 0.5, 1, 2, 3, 4};
  const Tensor singular = tensor(ctx, packed(with_spectrum(q, null)), {ops::packed_size(6)});
  EXPECT_TRUE(decomposes(ctx, singular, q.view(), view_of(null.data(), {6})));
  for (const double more : {0.3, -1.0}) {
    Matrix skew = q;
    for (std::int64_t r = 0; r < 6; ++r) skew(r, 0) += more * q(r, 3);
    EXPECT_FALSE(decomposes(ctx, singular, skew.view(), view_of(null.data(), {6}))) << more;
  }
  Matrix nan = q;
  nan(2, 3) = std::nan("");
  EXPECT_FALSE(good(nan, w));
}

TEST_P(Residual, AGoodDecompositionIsOneWhereTheSignsAreANullVector) {
  Random random(3);
  for (const DType dtype : {DType::f32, DType::f64})
    for (const std::int64_t n : {2, 3, 8, 33})
      for (int round = 0; round < 10; ++round) {
        const Matrix m = without_the_signs(n, random);
        const Tensor average = tensor(ctx, packed(m), {ops::packed_size(n)}, dtype);
        Tensor q = Tensor::zeros(ctx, {n, n}, dtype), w = Tensor::zeros(ctx, {n}, dtype);
        ops::unpack_lower(ctx, average, q, ops::Upper::untouched);
        std::int32_t info = 0;
        ops::eigh(ctx, q, w, view_of(&info, {1}));
        EXPECT_TRUE(decomposes(ctx, average, q, w)) << name_of(dtype) << ' ' << n;
        // Control: 1 % of the trace, where M z does not show the size of M.
        ops::fill(ctx, w.view().slice(0, 0, 1), 0.01 * trace(m));
        EXPECT_FALSE(decomposes(ctx, average, q, w)) << name_of(dtype) << ' ' << n;
      }
}

void fail(Context&, TensorView, TensorView info) { *info.data<std::int32_t>() = 1; }
/// A good status, and eigenvalues that are half of the right ones.
void decompose_wrongly(Context& ctx, TensorView a, TensorView w, TensorView info) {
  ops::eigh(ctx, a, w, info);
  ops::axpby(ctx, -0.5, Tensor::copy_of(ctx, w), 1, w);
}

TEST_P(Residual, TheFallbackDoesNotTrustADecompositionsStatus) {
  const Matrix m = with_spectrum(reflection(6), {0.1, 0.5, 1, 2, 3, 4});
  Random random(1);
  const Matrix rows = random_matrix(3, 6, random);
  for (const FactorForm* form :
       {FactorForm::inverse, FactorForm::cholesky, FactorForm::eigen, FactorForm::low_rank}) {
    const bool low = form == FactorForm::low_rank;
    const Tensor average = low ? tensor(ctx, rows.v, {3, 6}, DType::f64)
                               : tensor(ctx, packed(m), {ops::packed_size(6)}, DType::f64);
    Tensor inverse = Tensor::zeros(ctx, {low ? 3 : 6, 6}, DType::f64);
    Tensor eigenvalues = Tensor::zeros(ctx, {6}, DType::f64);
    const auto stage = [&](const Solvers& solvers) {
      return rebuild_inverse(ctx, {form, average, inverse, eigenvalues}, 0.25, solvers).stage;
    };
    EXPECT_EQ(stage({.potrf = fail, .eigh = decompose_wrongly}), InverseStage::kept);
    EXPECT_EQ(stage({.potrf = fail}),
              form == FactorForm::eigen ? InverseStage::damped : InverseStage::clipped);
  }
}

// The first of three features is the sum of the others, so that (1, -1, -1) is a null vector.
TEST_P(Residual, TheFallbackAcceptsEigenvectorsOfAFactorWithANullVectorOfSigns) {
  Matrix rows(2, 3);
  rows.v = {3, 1, 2, 5, 4, 1};
  const Matrix m = second_moment(rows, 2);
  const Tensor average = tensor(ctx, packed(m), {ops::packed_size(3)}, DType::f64);
  const Matrix expected = inverse(plus_diagonal(m, 0.25));
  Tensor x = Tensor::zeros(ctx, {3, 3}, DType::f64), w = Tensor::zeros(ctx, {3}, DType::f64);
  const FactorGroup block{FactorForm::inverse, average, x, w};
  EXPECT_EQ(rebuild_inverse(ctx, block, 0.25, {.potrf = fail}).stage, InverseStage::clipped);
  EXPECT_TRUE(near(values(ctx, x), expected.v, 1e-12));
}

}  // namespace
}  // namespace dkfac::kfac
