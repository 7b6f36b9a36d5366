#include <limits>

#include <gtest/gtest.h>

#include "dkfac/core/ops.h"
#include "dkfac/core/threads.h"

#include "core/cpu/denormals.h"
#include "core/cpu/library_info.h"
#include "support/each_backend.h"
#include "support/near.h"
#include "support/padded.h"
#include "support/reference.h"

namespace dkfac {
namespace {

using ops::Trans;
using testing::Dense;
using testing::Padded;

class Gemm : public testing::EachBackend {};
DKFAC_EACH_BACKEND(Gemm);

constexpr Trans kBoth[] = {Trans::no, Trans::yes};
constexpr std::int64_t kProductSizes[] = {1, 2, 31, 32, 33, 65};

Padded stored(DType dtype, Trans trans, const Dense& op) {
  return {dtype, trans == Trans::yes ? testing::transpose(op) : op};
}

TEST_P(Gemm, IsExactOnIntegersForEverySizeAndTransposition) {
  Random random(1);
  for (const std::int64_t m : kProductSizes) {
    for (const std::int64_t n : kProductSizes) {
      const std::int64_t k = kProductSizes[random.below(6)];
      const Dense a = testing::random_integers(m, k, random);
      const Dense b = testing::random_integers(k, n, random);
      const Dense c0 = testing::random_integers(m, n, random);
      for (const Trans ta : kBoth) {
        for (const Trans tb : kBoth) {
          Padded pa = stored(dtype(), ta, a), pb = stored(dtype(), tb, b), pc(dtype(), c0);
          ops::gemm(ctx, ta, tb, 0.5, pa.view(), pb.view(), -2, pc.view());
          ASSERT_EQ(pc.values().data, testing::naive_gemm(0.5, a, b, -2, c0).data)
              << m << "x" << n << "x" << k << " " << int(ta) << int(tb);
          ASSERT_TRUE(pc.gaps_untouched());
        }
      }
    }
  }
}

TEST_P(Gemm, IsExactOnIntegersPastOneCacheBlockOnAnyNumberOfThreads) {
  Random random(2);
  const Dense a = testing::random_integers(257, 600, random);
  const Dense b = testing::random_integers(600, 300, random);
  const Dense expected = testing::multiply(a, b);
  for (const int count : {1, 2, 3}) {
    set_threads(count);
    for (const Trans ta : kBoth) {
      Padded pa = stored(dtype(), ta, a), pb = stored(dtype(), ta, b), pc(dtype(), 257, 300);
      ops::gemm(ctx, ta, ta, 1, pa.view(), pb.view(), 0, pc.view());
      EXPECT_EQ(pc.values().data, expected.data) << count;
    }
  }
}

TEST_P(Gemm, StaysWithinRoundingOnRealNumbers) {
  Random random(3);
  const Dense a = testing::random_dense(33, 257, random);
  const Dense b = testing::random_dense(257, 65, random);
  Padded pa(dtype(), a), pb(dtype(), b), pc(dtype(), 33, 65);
  ops::gemm(ctx, Trans::no, Trans::no, 1.25, pa.view(), pb.view(), 0, pc.view());
  const Dense expected = testing::naive_gemm(1.25, pa.values(), pb.values());
  // c = 1: the largest of 2145 sums exceeds the error bound of one sum.
  EXPECT_TRUE(testing::near(pc.values().data, expected.data, 257 * epsilon()));
  // Control: the same bound sees one wrong element of a.
  Dense wrong = pa.values();
  wrong(7, 100) += 0.25;
  EXPECT_FALSE(testing::near(pc.values().data, testing::naive_gemm(1.25, wrong, pb.values()).data,
                             257 * epsilon()));
}

TEST_P(Gemm, WithBetaZeroDoesNotReadTheResult) {
  const Dense one(3, 3);
  Padded a(dtype(), one), b(dtype(), one), c(dtype(), 3, 3, Padded::kNan);
  ops::gemm(ctx, Trans::no, Trans::no, 1, a.view(), b.view(), 0, c.view());
  EXPECT_EQ(c.values().data, one.data);
}

TEST_P(Gemm, WithAlphaZeroDoesNotReadTheOperands) {
  Padded a(dtype(), 2, 4), b(dtype(), 4, 3),
      c(dtype(), testing::make_dense(2, 3, [](auto, auto) { return 3.0; }));
  ops::gemm(ctx, Trans::no, Trans::no, 0, a.view(), b.view(), 2, c.view());
  EXPECT_EQ(c.values().data, std::vector<double>(6, 6.0));
}

TEST_P(Gemm, PassesNanThrough) {
  Dense a(2, 2);
  a(1, 0) = Padded::kNan;
  Padded pa(dtype(), a), pb(dtype(), testing::identity(2)), pc(dtype(), 2, 2);
  ops::gemm(ctx, Trans::no, Trans::no, 1, pa.view(), pb.view(), 0, pc.view());
  EXPECT_EQ(pc.get(0, 0), 0);
  EXPECT_TRUE(std::isnan(pc.get(1, 0)));
}

TEST_P(Gemm, AcceptsEmptyMatrices) {
  Padded tall(dtype(), 3, 0), flat(dtype(), 0, 2);
  Padded c(dtype(), testing::make_dense(3, 2, [](auto, auto) { return 1.0; }));
  ops::gemm(ctx, Trans::no, Trans::no, 1, tall.view(), flat.view(), 0.5, c.view());
  EXPECT_EQ(c.values().data, std::vector<double>(6, 0.5));
  Padded nan(dtype(), 3, 2);
  ops::gemm(ctx, Trans::no, Trans::no, 1, tall.view(), flat.view(), 0, nan.view());
  EXPECT_EQ(nan.values().data, std::vector<double>(6, 0.0));
  Padded none(dtype(), 0, 0);
  ops::gemm(ctx, Trans::yes, Trans::no, 1, tall.view(), c.view(), 0, Padded(dtype(), 0, 2).view());
  EXPECT_TRUE(none.gaps_untouched());
}

TEST_P(Gemm, RefusesWhatDoesNotFit) {
  Padded a(dtype(), 2, 3), b(dtype(), 4, 5), c(dtype(), 2, 5);
  EXPECT_THROW(ops::gemm(ctx, Trans::no, Trans::no, 1, a.view(), b.view(), 0, c.view()),
               InvalidArgument);
  Padded b2(dtype(), 3, 5), wrong(dtype(), 5, 2);
  EXPECT_THROW(ops::gemm(ctx, Trans::no, Trans::no, 1, a.view(), b2.view(), 0, wrong.view()),
               InvalidArgument);
  const DType other = dtype() == DType::f32 ? DType::f64 : DType::f32;
  Padded mixed(other, 3, 5);
  EXPECT_THROW(ops::gemm(ctx, Trans::no, Trans::no, 1, a.view(), mixed.view(), 0, c.view()),
               InvalidArgument);
  EXPECT_THROW(
      ops::gemm(ctx, Trans::no, Trans::no, 1, a.view(), b2.view().transposed(), 0, c.view()),
      InvalidArgument);
}

TEST_P(Gemm, SaysWhatDoesNotFit) {
  Padded a(dtype(), 2, 3), b(dtype(), 4, 5), c(dtype(), 2, 5);
  try {
    ops::gemm(ctx, Trans::no, Trans::no, 1, a.view(), b.view(), 0, c.view());
    FAIL();
  } catch (const InvalidArgument& e) {
    EXPECT_EQ(std::string(e.what()).rfind("[gemm] ", 0), 0U) << e.what();
    EXPECT_NE(std::string(e.what()).find("[2, 3]"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("[4, 5]"), std::string::npos) << e.what();
  }
}

TEST_P(Gemm, LeavesTheModeOfDenormalsToTheCaller) {
  volatile double normal = std::numeric_limits<double>::min();
  const double denormal = normal / 4;
  ASSERT_GT(denormal, 0);
  Padded a(dtype(), 8, 8), b(dtype(), 8, 8), c(dtype(), 8, 8);
  ops::gemm(ctx, Trans::no, Trans::no, 1, a.view(), b.view(), 0, c.view());
  EXPECT_EQ(normal / 4, denormal);
}

TEST(Denormals, AreZeroWithinTheScopeAlone) {
  volatile float normal = std::numeric_limits<float>::min();
  const float denormal = normal / 4;
  ASSERT_GT(denormal, 0);
  {
    const cpu::FlushDenormals flush;
    const bool avx512 = cpu::widest_simd() == cpu::Simd::avx512;
    const float expected = avx512 ? 0 : normal / 4;  // other processors may lack the mode
    EXPECT_EQ(normal / 4, expected);
  }
  EXPECT_EQ(normal / 4, denormal);
}

}  // namespace
}  // namespace dkfac
