#include <gtest/gtest.h>

#include "support/matrices.h"
#include "support/near.h"
#include "support/padded.h"
#include "support/reference.h"

/// Compares the reference implementations with matrices of known results.
namespace dkfac::testing {
namespace {

constexpr double kEps = std::numeric_limits<double>::epsilon();

TEST(KnownMatrices, AreTheProductsOfTheirFactors) {
  for (const std::int64_t n : {1, 2, 17}) {
    for (const KnownSpd& m : {min_matrix(n), decaying_matrix(n, 0.6)}) {
      // c = 4 on sums of n terms.
      EXPECT_TRUE(near(multiply(m.factor, transpose(m.factor)).data, m.a.data,
                       4 * static_cast<double>(n) * kEps));
      EXPECT_TRUE(
          near(multiply(m.a, m.inverse).data, identity(n).data, 4 * static_cast<double>(n) * kEps));
    }
  }
}

TEST(KnownMatrices, HaveTheInverseOfARankOneUpdate) {
  Random random(1);
  const RankOneUpdate m = rank_one_update(9, 0.3, random);
  // c = 20: one over the smallest eigenvalue 0.3, squared, and the elements of the products.
  EXPECT_TRUE(near(multiply(m.a, m.inverse).data, identity(9).data, 20 * 9 * kEps));
}

TEST(KnownMatrices, HaveTheirBadMinorWhereTheySay) {
  const Dense a = bad_minor_matrix(5, 3, -1);
  const Dense l = min_matrix(5).factor;
  Dense d = identity(5);
  d(2, 2) = -1;
  EXPECT_EQ(a.data, multiply(multiply(l, d), transpose(l)).data);
}

TEST(Oracles, SolveInvertsWithPivoting) {
  Dense a(2, 2);
  a(0, 1) = 2, a(1, 0) = 4;  // zero pivot without an exchange of rows
  const Dense x = inverse(a);
  EXPECT_EQ(x(0, 1), 0.25);
  EXPECT_EQ(x(1, 0), 0.5);
  EXPECT_THROW(inverse(Dense(3, 3)), std::runtime_error);
}

TEST(Oracles, KroneckerProductsMultiplyFactorByFactor) {
  Random random(2);
  const Dense a = random_integers(2, 3, random), b = random_integers(3, 2, random);
  const Dense c = random_integers(3, 2, random), d = random_integers(2, 4, random);
  EXPECT_EQ(multiply(kronecker(a, b), kronecker(c, d)).data,
            kronecker(multiply(a, c), multiply(b, d)).data);
  EXPECT_NE(kronecker(a, b).data, kronecker(b, a).data);
}

TEST(Oracles, PaddedMatricesNoticeAnyWrite) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    Padded p = Padded::lower(dtype, identity(3));
    EXPECT_TRUE(p.upper_untouched());
    p.set(0, 2, 1);
    EXPECT_FALSE(p.upper_untouched());
    EXPECT_TRUE(p.gaps_untouched());
    p.set(1, 3, 1);
    EXPECT_FALSE(p.gaps_untouched());
  }
}

TEST(Oracles, NearRefusesNanAndWrongSizes) {
  const std::vector<double> one{1}, nan{std::nan("")}, two{1, 1};
  EXPECT_TRUE(near(one, one, 0));
  EXPECT_FALSE(near(nan, one, 1e300));
  EXPECT_FALSE(near(two, one, 1e300));
}

}  // namespace
}  // namespace dkfac::testing
