#include "core/shared/cuda/linalg16.h"

#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/ops.h"

#include "core/cuda/products.h"
#include "support/on_device.h"
#include "support/reference.h"

namespace dkfac {
namespace {

using ops::Trans;
using testing::Dense;
using testing::host_waits;
using testing::Padded;
using testing::PaddedOnDevice;

constexpr Trans kTransposed16[] = {Trans::no, Trans::yes};

/// One product, as a batch.
void gemm16(Context& ctx, Trans trans_a, Trans trans_b, double alpha, ConstTensorView a,
            ConstTensorView b, double beta, TensorView c) {
  cuda::gemm16_batched(ctx, trans_a, trans_b, alpha, cuda::batch_of(a), cuda::batch_of(b), beta,
                       cuda::batch_of(c));
}

/// Over f16 and bf16.
class DeviceGemm16 : public ::testing::TestWithParam<DType> {
 protected:
  /// x on the device, rounded to the dtype, with gaps; x itself becomes what was stored.
  PaddedOnDevice upload(Dense& x) {
    Padded host(DType::f64, x);
    Tensor rounded = Tensor::empty(cpu, {x.rows, x.cols}, GetParam());
    ops::cast(cpu, host.view(), rounded);
    ops::cast(cpu, rounded, view_of(x.data.data(), {x.rows, x.cols}));
    return {ctx, rounded};
  }
  /// Products of 16-bit numbers are exact in f32: only sums round, and the adders of tensor cores
  /// may truncate, which loses up to 2^-22 of each.
  static double bound(std::int64_t k) { return static_cast<double>(k + 4) * 0x1p-22; }

  Context ctx{Device::cuda()};
  Context cpu;
};
INSTANTIATE_TEST_SUITE_P(DTypes, DeviceGemm16, ::testing::Values(DType::f16, DType::bf16),
                         testing::name_of_dtype);

TEST_P(DeviceGemm16, MultipliesEveryTranspose) {
  Random random(1);
  for (const auto [m, n, k] : {std::array{1, 1, 1}, {5, 3, 8}, {33, 17, 64}}) {
    for (const Trans ta : kTransposed16) {
      for (const Trans tb : kTransposed16) {
        Dense a = ta == Trans::yes ? testing::random_dense(k, m, random)
                                   : testing::random_dense(m, k, random);
        Dense b = tb == Trans::yes ? testing::random_dense(n, k, random)
                                   : testing::random_dense(k, n, random);
        PaddedOnDevice da = upload(a), db = upload(b), dc(ctx, DType::f32, m, n);
        const std::int64_t waits = host_waits();
        gemm16(ctx, ta, tb, 0.5, da.view(), db.view(), 0, dc.view());
        gemm16(ctx, ta, tb, 1, da.view(), db.view(), 2, dc.view());
        EXPECT_EQ(host_waits(), waits);
        const Dense expected = testing::naive_gemm(2, ta == Trans::yes ? testing::transpose(a) : a,
                                                   tb == Trans::yes ? testing::transpose(b) : b);
        EXPECT_TRUE(testing::near(dc.values(ctx), expected.data, bound(k))) << m << n << k;
        EXPECT_TRUE(dc.gaps_untouched(ctx));
      }
    }
  }
}

TEST_P(DeviceGemm16, MultipliesBatches) {
  Random random(2);
  const std::int64_t count = 3, m = 4, n = 5, k = 6;
  Dense a = testing::random_dense(count * k, m, random), b = testing::random_dense(k, n, random);
  PaddedOnDevice da = upload(a), db = upload(b), dc(ctx, DType::f32, count * (m + 1), n);
  const TensorView va = da.view(), vb = db.view(), vc = dc.view();
  const TensorView batch_a(va.raw(), va.dtype(), {count, k, m}, {k * va.stride(0), va.stride(0), 1},
                           va.device());
  const TensorView batch_b(vb.raw(), vb.dtype(), {count, k, n}, {0, vb.stride(0), 1}, vb.device());
  const TensorView batch_c(vc.raw(), vc.dtype(), {count, m, n},
                           {(m + 1) * vc.stride(0), vc.stride(0), 1}, vc.device());
  cuda::gemm16_batched(ctx, Trans::yes, Trans::no, 1, batch_a, batch_b, 0, batch_c);
  const std::vector<double> got = dc.values(ctx);
  for (std::int64_t i = 0; i < count; ++i) {
    const Dense one = testing::make_dense(m, k, [&](auto r, auto c) { return a(i * k + c, r); });
    const Dense expected = testing::multiply(one, b);
    const auto first = got.begin() + i * (m + 1) * n;
    EXPECT_TRUE(testing::near(std::vector(first, first + m * n), expected.data, bound(k))) << i;
    EXPECT_TRUE(std::isnan(*(first + m * n))) << "a row between two matrices was written";
  }
}

TEST_P(DeviceGemm16, AnswersEmptyProducts) {
  const Tensor a = Tensor::empty(ctx, {2, 0}, GetParam()),
               b = Tensor::empty(ctx, {0, 3}, GetParam());
  PaddedOnDevice c(ctx, DType::f32, 2, 3);
  gemm16(ctx, Trans::no, Trans::no, 1, a, b, 0, c.view());
  EXPECT_EQ(c.values(ctx), std::vector<double>(6, 0));
  EXPECT_TRUE(c.gaps_untouched(ctx));
}

TEST_P(DeviceGemm16, RefusesWhatDoesNotFit) {
  const Tensor a = Tensor::empty(ctx, {2, 4}, GetParam()),
               b = Tensor::empty(ctx, {4, 3}, GetParam());
  Tensor c = Tensor::empty(ctx, {2, 3}, DType::f32), wide = Tensor::empty(ctx, {2, 3}, DType::f64);
  EXPECT_THROW(gemm16(ctx, Trans::yes, Trans::no, 1, a, b, 0, c), InvalidArgument);
  EXPECT_THROW(gemm16(ctx, Trans::no, Trans::no, 1, a, b, 0, wide), InvalidArgument);
  EXPECT_THROW(gemm16(ctx, Trans::no, Trans::no, 1, c, b, 0, c), InvalidArgument);
  EXPECT_THROW(cuda::gemm16_batched(ctx, Trans::no, Trans::no, 1, a, b, 0, c), InvalidArgument);
}

}  // namespace
}  // namespace dkfac
