#include <limits>

#include <gtest/gtest.h>

#include "dkfac/core/ops.h"
#include "dkfac/core/threads.h"

#include "support/each_backend.h"
#include "support/matrices.h"
#include "support/near.h"
#include "support/padded.h"
#include "support/reference.h"

namespace dkfac {
namespace {

using testing::Dense;
using testing::KnownSpd;
using testing::Padded;

constexpr std::int64_t kOrders[] = {0, 1, 2, 31, 32, 33, 63, 64, 65, 129, 257};

class Cholesky : public testing::EachBackend {
 protected:
  /// info of potrf, or of potri.
  std::int32_t potrf(Padded& a) {
    std::int32_t info = -7;
    ops::potrf(ctx, a.view(), view_of(&info, {1}));
    return info;
  }
  std::int32_t potri(Padded& a) {
    std::int32_t info = -7;
    ops::potri(ctx, a.view(), view_of(&info, {1}));
    return info;
  }
  static Dense lower_of(const Padded& a) { return testing::lower(a.values()); }
  static double n_or_one(std::int64_t n) {
    return static_cast<double>(std::max<std::int64_t>(n, 1));
  }
};
DKFAC_EACH_BACKEND(Cholesky);

TEST_P(Cholesky, FindsTheFactorOfMinMatrices) {
  for (const std::int64_t n : kOrders) {
    const KnownSpd known = testing::min_matrix(n);
    Padded a = Padded::lower(dtype(), known.a);
    ASSERT_EQ(potrf(a), 0) << n;
    // Every intermediate is a small integer: no rounding at all.
    EXPECT_EQ(lower_of(a).data, known.factor.data) << n;
    EXPECT_TRUE(a.upper_untouched()) << n;
  }
}

TEST_P(Cholesky, FindsTheFactorOfDecayingMatrices) {
  for (const std::int64_t n : kOrders) {
    const KnownSpd known = testing::decaying_matrix(n, 0.7);
    Padded a = Padded::lower(dtype(), known.a);
    ASSERT_EQ(potrf(a), 0) << n;
    // c = 8: condition (1.7/0.3)^2 of the matrix, most of which cancels in L.
    EXPECT_TRUE(testing::near(lower_of(a).data, known.factor.data, 8 * n_or_one(n) * epsilon()));
    EXPECT_TRUE(a.upper_untouched()) << n;
  }
}

TEST_P(Cholesky, InvertsMinMatrices) {
  for (const std::int64_t n : kOrders) {
    const KnownSpd known = testing::min_matrix(n);
    Padded a = Padded::lower(dtype(), known.a);
    ASSERT_EQ(potrf(a), 0);
    ASSERT_EQ(potri(a), 0);
    EXPECT_EQ(lower_of(a).data, testing::lower(known.inverse).data) << n;
    EXPECT_TRUE(a.upper_untouched()) << n;
  }
}

TEST_P(Cholesky, InvertsOnAnyNumberOfThreads) {
  const KnownSpd known = testing::min_matrix(300);
  for (const int count : {2, 3}) {
    set_threads(count);
    Padded a = Padded::lower(dtype(), known.a);
    ASSERT_EQ(potrf(a), 0);
    ASSERT_EQ(potri(a), 0);
    EXPECT_EQ(lower_of(a).data, testing::lower(known.inverse).data) << count;
    EXPECT_TRUE(a.upper_untouched()) << count;
  }
}

TEST_P(Cholesky, InvertsRankOneUpdates) {
  Random random(3);
  for (const std::int64_t n : kOrders) {
    const auto known = testing::rank_one_update(n, 0.5, random);
    Padded a = Padded::lower(dtype(), known.a);
    ASSERT_EQ(potrf(a), 0);
    ASSERT_EQ(potri(a), 0);
    // c = 8: the condition is 1 + 2 u'u, about n, but the error of the inverse of a matrix with one
    // large eigenvalue is of the order of its small ones.
    EXPECT_TRUE(testing::near(lower_of(a).data, testing::lower(known.inverse).data,
                              8 * n_or_one(n) * epsilon()))
        << n;
    EXPECT_TRUE(a.upper_untouched()) << n;
  }
}

TEST_P(Cholesky, InvertsRandomMatrices) {
  Random random(4);
  const std::int64_t n = 200;
  Padded a = Padded::lower(dtype(), testing::random_spd(n, random));
  const Dense expected = testing::inverse(testing::make_dense(
      n, n, [&](auto i, auto j) { return a.get(std::max(i, j), std::min(i, j)); }));
  ASSERT_EQ(potrf(a), 0);
  ASSERT_EQ(potri(a), 0);
  // c = 34: the condition of x'x with twice as many rows as columns tends to
  // ((1 + sqrt(1/2)) / (1 - sqrt(1/2)))^2 = 34.
  EXPECT_TRUE(testing::near(lower_of(a).data, testing::lower(expected).data, 34 * n * epsilon()));
  // Control: a damped matrix has another inverse.
  Padded damped = Padded::lower(dtype(), expected);
  ops::add_diagonal(ctx, damped.view(), 0.01);
  EXPECT_FALSE(
      testing::near(lower_of(damped).data, testing::lower(expected).data, 34 * n * epsilon()));
}

TEST_P(Cholesky, ReportsTheFirstBadMinor) {
  for (const std::int64_t n : {1, 2, 33, 65, 200}) {
    for (const std::int64_t order : {std::int64_t{1}, n / 2 + 1, n}) {
      for (const double pivot : {-1.0, 0.0}) {
        Padded bad = Padded::lower(dtype(), testing::bad_minor_matrix(n, order, pivot));
        EXPECT_EQ(potrf(bad), order) << n << " " << pivot;
        EXPECT_TRUE(bad.upper_untouched());
      }
      Padded good = Padded::lower(dtype(), testing::bad_minor_matrix(n, order, 1));
      EXPECT_EQ(potrf(good), 0) << n;
    }
  }
}

TEST_P(Cholesky, ReportsTheRowOfANonFiniteElement) {
  const double inf = std::numeric_limits<double>::infinity();
  for (const double bad : {Padded::kNan, inf, -inf}) {
    for (const std::int64_t n : {1, 5, 70, 200}) {
      for (const std::int64_t row : {std::int64_t{0}, n / 2, n - 1}) {
        for (const std::int64_t col : {std::int64_t{0}, row / 2, row}) {
          Dense a = testing::min_matrix(n).a;
          a(row, col) = bad;
          Padded p = Padded::lower(dtype(), a);
          EXPECT_EQ(potrf(p), row + 1) << n << " " << row << " " << col << " " << bad;
        }
      }
    }
  }
}

TEST_P(Cholesky, NeedsDoublePrecisionForAHilbertMatrix) {
  // Order 10 has condition 1.6e13: definite in f64, lost in the rounding of f32.
  Padded a = Padded::lower(dtype(), testing::hilbert_matrix(10));
  const std::int32_t info = potrf(a);
  if (dtype() == DType::f64) {
    EXPECT_EQ(info, 0);
  } else {
    EXPECT_GT(info, 4);
  }
}

TEST_P(Cholesky, RefusesToInvertASingularFactor) {
  for (const std::int64_t n : {1, 40, 100}) {
    Dense l = testing::min_matrix(n).factor;
    l(n / 2, n / 2) = 0;
    Padded p = Padded::lower(dtype(), l);
    EXPECT_EQ(potri(p), n / 2 + 1);
    EXPECT_TRUE(p.upper_untouched());
  }
}

TEST_P(Cholesky, RefusesWhatDoesNotFit) {
  Padded flat(dtype(), 2, 3), a(dtype(), 2, 2);
  EXPECT_THROW(potrf(flat), InvalidArgument);
  EXPECT_THROW(potri(flat), InvalidArgument);
  float wrong = 0;
  EXPECT_THROW(ops::potrf(ctx, a.view(), view_of(&wrong, {1})), InvalidArgument);
  EXPECT_THROW(ops::potrf(ctx, a.view(), {}), InvalidArgument);
}

}  // namespace
}  // namespace dkfac
