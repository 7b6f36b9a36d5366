#include <gtest/gtest.h>

#include "dkfac/core/ops.h"
#include "dkfac/core/threads.h"

#include "support/each_backend.h"
#include "support/near.h"
#include "support/padded.h"
#include "support/reference.h"

namespace dkfac {
namespace {

using testing::Dense;
using testing::Padded;

class Syrk : public testing::EachBackend {};
DKFAC_EACH_BACKEND(Syrk);

Dense square(double alpha, const Dense& x, double beta, const Dense& c) {
  return testing::lower(testing::naive_gemm(alpha, testing::transpose(x), x, beta, c));
}

TEST_P(Syrk, IsExactOnIntegersAndLeavesTheUpperTriangleAlone) {
  Random random(1);
  for (const std::int64_t d : {1, 2, 31, 32, 33, 63, 64, 65, 130}) {
    for (const std::int64_t n : {1, 2, 33, 300}) {
      const Dense x = testing::random_integers(n, d, random);
      const Dense c0 = testing::random_integers(d, d, random);
      Padded px(dtype(), x), pc = Padded::lower(dtype(), c0);
      ops::syrk(ctx, 0.5, px.view(), -2, pc.view());
      EXPECT_TRUE(pc.upper_untouched()) << d << " " << n;
      ASSERT_EQ(testing::lower(pc.values()).data, square(0.5, x, -2, c0).data) << d << " " << n;
    }
  }
}

/// A column of ones, and nine of whole numbers that add up to 0.
Dense cancelling(std::int64_t rows) {
  Random random(4);
  Dense x = testing::random_integers(rows, 10, random);
  for (std::int64_t j = 0; j < 10; ++j) {
    double sum = 0;
    for (std::int64_t i = 0; i + 1 < rows; ++i) sum += x(i, j);
    x(rows - 1, j) = -sum;
  }
  for (std::int64_t i = 0; i < rows; ++i) x(i, 0) = 1;
  return x;
}

// Terms cancel before alpha rounds them, in one block of rows and in several.
TEST(ReferenceSyrk, OfWhatCancelsIsZero) {
  Context ctx(Device::cpu(), {.backend = Backend::reference});
  for (const std::int64_t rows : {3, 7, 100, 300, 1000}) {
    const Dense x = cancelling(rows);
    for (const DType dtype : {DType::f32, DType::f64}) {
      Padded px(dtype, x), pc(dtype, 10, 10), pg(dtype, 10, 10);
      for (const double alpha : {1.0 / static_cast<double>(rows), 0.1, -0.7}) {
        ops::syrk(ctx, alpha, px.view(), 0, pc.view());
        ops::gemm(ctx, ops::Trans::yes, ops::Trans::no, alpha, px.view(), px.view(), 0, pg.view());
        for (std::int64_t j = 1; j < 10; ++j) {
          EXPECT_EQ(pc.values()(j, 0), 0) << rows << " " << alpha;
          EXPECT_EQ(pg.values()(j, 0), 0) << rows << " " << alpha;
          EXPECT_EQ(pg.values()(0, j), 0) << rows << " " << alpha;
        }
      }
    }
  }
}

TEST_P(Syrk, WithBetaZeroDoesNotReadTheResult) {
  Random random(2);
  for (const std::int64_t d : {3, 100}) {
    const Dense x = testing::random_integers(40, d, random);
    Padded px(dtype(), x), pc(dtype(), d, d, Padded::kNan);
    ops::syrk(ctx, 1, px.view(), 0, pc.view());
    EXPECT_EQ(testing::lower(pc.values()).data, square(1, x, 0, {}).data);
    EXPECT_TRUE(pc.upper_untouched());
  }
}

TEST_P(Syrk, OfNoRowsOnlyScales) {
  const Dense c0 = testing::make_dense(4, 4, [](auto, auto) { return 8.0; });
  Padded x(dtype(), 0, 4), c = Padded::lower(dtype(), c0), nan(dtype(), 4, 4);
  ops::syrk(ctx, 1, x.view(), 0.25, c.view());
  EXPECT_EQ(testing::lower(c.values()).data,
            testing::lower(testing::make_dense(4, 4, [](auto, auto) { return 2.0; })).data);
  EXPECT_TRUE(c.upper_untouched());
  ops::syrk(ctx, 1, x.view(), 0, nan.view());
  EXPECT_EQ(testing::lower(nan.values()).data, Dense(4, 4).data);
  Padded narrow(dtype(), 7, 0), none(dtype(), 0, 0);
  ops::syrk(ctx, 1, narrow.view(), 0, none.view());
  EXPECT_TRUE(none.gaps_untouched());
}

TEST_P(Syrk, IsExactOnIntegersOnAnyNumberOfThreads) {
  Random random(6);
  for (const std::int64_t d : {40, 300}) {
    const Dense x = testing::random_integers(500, d, random);
    const Dense expected = square(1, x, 0, {});
    for (const int count : {1, 2, 3}) {
      set_threads(count);
      Padded px(dtype(), x), pc(dtype(), d, d);
      ops::syrk(ctx, 1, px.view(), 0, pc.view());
      EXPECT_EQ(testing::lower(pc.values()).data, expected.data) << d << " " << count;
      EXPECT_TRUE(pc.upper_untouched());
    }
  }
}

TEST_P(Syrk, StaysWithinRoundingOverManyRows) {
  Random random(3);
  for (const std::int64_t d : {20, 90}) {
    Padded x(dtype(), testing::random_dense(2000, d, random)), c(dtype(), d, d);
    ops::syrk(ctx, 1.0 / 2000, x.view(), 0, c.view());
    // c = 1 with n = 2000 terms; all terms of the diagonal have one sign.
    EXPECT_TRUE(testing::near(testing::lower(c.values()).data,
                              square(1.0 / 2000, x.values(), 0, {}).data, 2000 * epsilon()));
  }
}

TEST_P(Syrk, GrowsScratchOnlyOnce) {
  Padded x(dtype(), Dense(50, 40)), c(dtype(), 40, 40);
  ops::syrk(ctx, 1, x.view(), 0, c.view());
  const std::int64_t before = ctx.scratch_growths();
  ops::syrk(ctx, 1, x.view(), 0, c.view());
  EXPECT_EQ(ctx.scratch_growths(), before);
}

TEST_P(Syrk, RefusesWhatDoesNotFit) {
  Padded x(dtype(), 5, 3), c(dtype(), 4, 4), flat(dtype(), 3, 4);
  EXPECT_THROW(ops::syrk(ctx, 1, x.view(), 0, c.view()), InvalidArgument);
  EXPECT_THROW(ops::syrk(ctx, 1, x.view(), 0, flat.view()), InvalidArgument);
}

class SquareMatrix : public testing::EachBackend {};
DKFAC_EACH_BACKEND(SquareMatrix);

TEST_P(SquareMatrix, MirrorsItsLowerTriangle) {
  Random random(4);
  for (const std::int64_t d : {0, 1, 2, 31, 32, 33, 65}) {
    const Dense a = testing::random_integers(d, d, random);
    Padded p = Padded::lower(dtype(), a);
    ops::symmetrize(ctx, p.view());
    const Dense expected = testing::make_dense(
        d, d, [&](auto i, auto j) { return a(std::max(i, j), std::min(i, j)); });
    EXPECT_EQ(p.values().data, expected.data) << d;
    EXPECT_TRUE(p.gaps_untouched());
  }
}

TEST_P(SquareMatrix, AddsToItsDiagonalOnly) {
  Random random(5);
  const Dense a = testing::random_integers(33, 33, random);
  Padded p(dtype(), a);
  ops::add_diagonal(ctx, p.view(), 0.5);
  const Dense expected =
      testing::make_dense(33, 33, [&](auto i, auto j) { return a(i, j) + (i == j ? 0.5 : 0.0); });
  EXPECT_EQ(p.values().data, expected.data);
  EXPECT_TRUE(p.gaps_untouched());
  Padded flat(dtype(), 2, 3);
  EXPECT_THROW(ops::add_diagonal(ctx, flat.view(), 1), InvalidArgument);
  EXPECT_THROW(ops::symmetrize(ctx, flat.view()), InvalidArgument);
}

}  // namespace
}  // namespace dkfac
