#include <algorithm>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/ops.h"
#include "dkfac/core/tensor.h"

#include "support/each_backend.h"
#include "support/matrices.h"
#include "support/near.h"
#include "support/padded.h"
#include "support/reference.h"

namespace dkfac {
namespace {

using testing::Dense;
using testing::Padded;

struct Eigen {
  std::int32_t info;
  Dense vectors;
  std::vector<double> values;
};

class Eigh : public testing::EachBackend {
 protected:
  Eigen solve(const Dense& matrix) {
    Padded a = Padded::lower(dtype(), matrix);
    Tensor w = Tensor::empty(ctx, {matrix.rows}, dtype());
    std::int32_t info = -7;
    ops::eigh(ctx, a.view(), w, view_of(&info, {1}));
    EXPECT_TRUE(a.gaps_untouched());
    return {info, a.values(), testing::values(ctx, w)};
  }

  /// Reconstruction, orthogonality and order: eigenvectors themselves are not unique.
  void expect_decomposes(const Dense& a) {
    const Eigen e = solve(a);
    ASSERT_EQ(e.info, 0);
    EXPECT_TRUE(std::is_sorted(e.values.begin(), e.values.end()));
    const std::int64_t n = a.rows;
    // c = 10: sums of n rounding errors of the largest eigenvalue, itself at most n times the
    // largest element.
    const double tolerance = 10 * static_cast<double>(std::max<std::int64_t>(n, 1)) * epsilon();
    const Dense scaled = testing::make_dense(n, n, [&](auto i, auto j) {
      return e.vectors(i, j) * e.values[static_cast<std::size_t>(j)];
    });
    const Dense transposed = testing::transpose(e.vectors);
    EXPECT_TRUE(testing::near(testing::multiply(scaled, transposed).data, a.data, tolerance));
    EXPECT_TRUE(testing::near(testing::multiply(transposed, e.vectors).data,
                              testing::identity(n).data, tolerance));
  }
};
DKFAC_EACH_BACKEND(Eigh);

TEST_P(Eigh, DecomposesRandomMatrices) {
  Random random(1);
  for (const std::int64_t n : {0, 1, 2, 3, 31, 32, 33, 65, 150}) {
    const Dense x = testing::random_dense(n, n, random);
    expect_decomposes(testing::make_dense(n, n, [&](auto i, auto j) { return x(i, j) + x(j, i); }));
  }
}

TEST_P(Eigh, DecomposesMatricesWithRepeatedEigenvalues) {
  Random random(2);
  expect_decomposes(Dense(20, 20));
  expect_decomposes(testing::identity(33));
  expect_decomposes(testing::rank_one_update(65, 0.5, random).a);
  const Dense x = testing::random_dense(4, 60, random);
  expect_decomposes(testing::multiply(testing::transpose(x), x));
}

TEST_P(Eigh, DecomposesMatricesOfVeryLargeAndVerySmallElements) {
  for (const double scale : {1e-30, 1e30}) {
    Dense a = testing::min_matrix(40).a;
    for (double& x : a.data) x *= scale;
    expect_decomposes(a);
  }
}

TEST_P(Eigh, DecomposesGradedMatrices) {
  // Elements from 1 down to 1e-30: reflectors whose squares vanish.
  expect_decomposes(testing::make_dense(
      31, 31, [](auto i, auto j) { return std::pow(10.0, -static_cast<double>(i + j) / 2); }));
}

TEST_P(Eigh, FindsKnownEigenvalues) {
  Random random(3);
  for (const std::int64_t n : {1, 2, 33, 129}) {
    const auto known = testing::second_difference(n);
    // c = 4 relative to the largest eigenvalue.
    EXPECT_TRUE(testing::near(solve(known.a).values, known.eigenvalues,
                              4 * static_cast<double>(n) * epsilon()))
        << n;
    const auto update = testing::rank_one_update(n, 0.25, random);
    EXPECT_TRUE(testing::near(solve(update.a).values, update.eigenvalues,
                              4 * static_cast<double>(n) * epsilon()))
        << n;
  }
}

TEST_P(Eigh, PutsEigenvectorsIntoColumns) {
  // diag(3, 1, 2) with a coupling of the first two: the vector of 2 is the third unit vector.
  Dense a(3, 3);
  a(0, 0) = 3, a(1, 1) = 1, a(2, 2) = 2, a(1, 0) = a(0, 1) = 0.5;
  const Eigen e = solve(a);
  EXPECT_NEAR(std::abs(e.vectors(2, 1)), 1, 8 * epsilon());
  // Control: in rows it would stand elsewhere. (a v)_0 = w v_0 with v the last column.
  EXPECT_NEAR(3 * e.vectors(0, 2) + 0.5 * e.vectors(1, 2), e.values[2] * e.vectors(0, 2),
              32 * epsilon());
  EXPECT_GT(std::abs(3 * e.vectors(2, 0) + 0.5 * e.vectors(2, 1) - e.values[2] * e.vectors(2, 0)),
            0.1);
}

TEST_P(Eigh, ReportsNonFiniteElementsInsteadOfIterating) {
  for (const double bad : {Padded::kNan, std::numeric_limits<double>::infinity()}) {
    for (const std::int64_t n : {1, 2, 40}) {
      Dense a = testing::min_matrix(n).a;
      a(n - 1, n / 2) = bad;
      EXPECT_GT(solve(a).info, 0) << n << " " << bad;
    }
  }
}

TEST_P(Eigh, RefusesWhatDoesNotFit) {
  Padded a(dtype(), 3, 3);
  std::int32_t info = 0;
  Tensor w = Tensor::empty(ctx, {2}, dtype());
  EXPECT_THROW(ops::eigh(ctx, a.view(), w, view_of(&info, {1})), InvalidArgument);
  const DType other = dtype() == DType::f32 ? DType::f64 : DType::f32;
  Tensor mixed = Tensor::empty(ctx, {3}, other);
  EXPECT_THROW(ops::eigh(ctx, a.view(), mixed, view_of(&info, {1})), InvalidArgument);
}

}  // namespace
}  // namespace dkfac
