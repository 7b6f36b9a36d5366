#include <gtest/gtest.h>

#include "dkfac/core/ops.h"

#include "support/on_device.h"
#include "support/reference.h"

namespace dkfac {
namespace {

using ops::Trans;
using testing::Dense;
using testing::host_waits;
using testing::Padded;
using testing::PaddedOnDevice;

constexpr Trans kBoth[] = {Trans::no, Trans::yes};

struct Size {
  std::int64_t m, n, k;
};
constexpr Size kProductSizes[] = {{1, 1, 1}, {1, 5, 3},  {4, 1, 2},
                                  {3, 2, 1}, {7, 9, 33}, {65, 31, 40}};

Dense stored(Trans trans, const Dense& x) {
  return trans == Trans::yes ? testing::transpose(x) : x;
}

class DeviceGemm : public testing::OnDevice {};
DKFAC_ON_DEVICE(DeviceGemm);

TEST_P(DeviceGemm, MultipliesEveryTransposeOfPaddedMatrices) {
  Random random(1);
  for (const auto [m, n, k] : kProductSizes) {
    for (const Trans ta : kBoth) {
      for (const Trans tb : kBoth) {
        const Dense a = testing::random_dense(m, k, random),
                    b = testing::random_dense(k, n, random);
        Padded ha(dtype(), stored(ta, a)), hb(dtype(), stored(tb, b));
        Padded hc(dtype(), testing::random_dense(m, n, random));
        PaddedOnDevice da(ctx, ha.view()), db(ctx, hb.view()), dc(ctx, hc.view());
        const std::int64_t waits = host_waits();
        ops::gemm(ctx, ta, tb, 1.5, da.view(), db.view(), -0.5, dc.view());
        EXPECT_EQ(host_waits(), waits);
        ops::gemm(cpu, ta, tb, 1.5, ha.view(), hb.view(), -0.5, hc.view());
        EXPECT_TRUE(testing::near(dc.values(ctx), hc.values().data, tolerance()))
            << m << " " << n << " " << k;
        EXPECT_TRUE(dc.gaps_untouched(ctx));
      }
    }
  }
}

TEST_P(DeviceGemm, WithBetaZeroDoesNotReadTheResult) {
  const Dense one = testing::identity(3);
  Padded host(dtype(), one);
  PaddedOnDevice a(ctx, host.view()), c(ctx, dtype(), 3, 3);
  ops::gemm(ctx, Trans::no, Trans::no, 2, a.view(), a.view(), 0, c.view());
  EXPECT_EQ(c.values(ctx), testing::naive_gemm(2, one, one).data);
}

TEST_P(DeviceGemm, PassesNanThrough) {
  Dense x = testing::identity(2);
  x(1, 0) = Padded::kNan;
  Padded hx(dtype(), x), h1(dtype(), testing::identity(2));
  PaddedOnDevice a(ctx, hx.view()), b(ctx, h1.view()), c(ctx, dtype(), 2, 2);
  ops::gemm(ctx, Trans::no, Trans::no, 1, a.view(), b.view(), 0, c.view());
  EXPECT_EQ(c.values(ctx)[0], 1);
  EXPECT_TRUE(std::isnan(c.values(ctx)[2]));
}

TEST_P(DeviceGemm, SeesOneWrongElement) {
  Random random(2);
  Dense a = testing::random_dense(20, 30, random);
  const Dense b = testing::random_dense(30, 10, random);
  Padded ha(dtype(), a), hb(dtype(), b);
  PaddedOnDevice da(ctx, ha.view()), db(ctx, hb.view()), c(ctx, dtype(), 20, 10);
  ops::gemm(ctx, Trans::no, Trans::no, 1, da.view(), db.view(), 0, c.view());
  EXPECT_TRUE(testing::near(c.values(ctx), testing::multiply(a, b).data, tolerance()));
  a(7, 3) += 0.01;
  EXPECT_FALSE(testing::near(c.values(ctx), testing::multiply(a, b).data, tolerance()));
}

TEST(DeviceGemmTf32, RoundsOperandsOnlyWhereTheContextSaysSo) {
  Context exact(Device::cuda()), rounding(Device::cuda(), {.tf32 = true});
  EXPECT_FALSE(exact.tf32());
  EXPECT_TRUE(rounding.tf32());
  Random random(3);
  const std::int64_t n = 256;  // Without gaps, so aligned: cuBLAS may compute others in full.
  Padded a(DType::f32, testing::random_dense(n, n, random));
  const Dense expected = testing::multiply(a.values(), a.values());
  const auto product = [&](Context& ctx) {
    Tensor da = Tensor::copy_of(ctx, a.view()), c = Tensor::empty(ctx, {n, n});
    ops::gemm(ctx, Trans::no, Trans::no, 1, da, da, 0, c);
    return testing::device_values(ctx, c);
  };
  EXPECT_TRUE(testing::near(product(exact), expected.data, 1e-5));
  // Both operands round by up to 2^-11; errors of a sum add up like its square root.
  EXPECT_TRUE(testing::near(product(rounding), expected.data, 2e-3));
  EXPECT_FALSE(testing::near(product(rounding), expected.data, 1e-5));
}

class DeviceSyrk : public testing::OnDevice {};
DKFAC_ON_DEVICE(DeviceSyrk);

TEST_P(DeviceSyrk, FillsTheLowerTriangleAlone) {
  Random random(4);
  for (const auto [rows, d, unused] : kProductSizes) {
    for (const double beta : {0.0, 0.75}) {
      Padded hx(dtype(), testing::random_dense(rows, d, random));
      Padded hc = beta == 0 ? Padded(dtype(), d, d)
                            : Padded::lower(dtype(), testing::random_dense(d, d, random));
      PaddedOnDevice dx(ctx, hx.view()), dc(ctx, hc.view());
      const std::int64_t waits = host_waits();
      ops::syrk(ctx, 0.5, dx.view(), beta, dc.view());
      EXPECT_EQ(host_waits(), waits);
      ops::syrk(cpu, 0.5, hx.view(), beta, hc.view());
      const std::vector<double> got = dc.values(ctx);
      for (std::int64_t i = 0; i < d; ++i) {
        for (std::int64_t j = 0; j < d; ++j) {
          const double x = got[static_cast<std::size_t>(i * d + j)];
          if (j > i) {
            EXPECT_TRUE(std::isnan(x));
          } else {
            EXPECT_NEAR(x, hc.get(i, j), tolerance() * static_cast<double>(rows));
          }
        }
      }
      EXPECT_TRUE(dc.gaps_untouched(ctx));
    }
  }
}

}  // namespace
}  // namespace dkfac
