#include "core/shared/cuda/batched.h"

#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/ops.h"

#include "support/matrices.h"
#include "support/on_device.h"

namespace dkfac {
namespace {

using ops::Trans;
using testing::Dense;
using testing::host_waits;
using testing::Padded;
using testing::PaddedOnDevice;

constexpr Trans kTransposedBatch[] = {Trans::no, Trans::yes};

/// A batch [count, rows, cols] on the device, with gaps between rows and between matrices.
class Batch {
 public:
  Batch(Context& ctx, DType dtype, std::int64_t count, std::int64_t rows, std::int64_t cols)
      : storage_(ctx, dtype, count * (rows + 1), cols), count_(count), rows_(rows), cols_(cols) {}

  [[nodiscard]] TensorView view() {
    const TensorView all = storage_.view();
    return {all.raw(), all.dtype(), Shape{count_, rows_, cols_},
            Strides{(rows_ + 1) * all.stride(0), all.stride(0), 1}, all.device()};
  }
  [[nodiscard]] TensorView at(std::int64_t i) {
    return storage_.view().slice(0, i * (rows_ + 1), rows_);
  }
  [[nodiscard]] Dense values(Context& ctx, std::int64_t i) {
    Dense out(rows_, cols_);
    out.data = testing::device_values(ctx, at(i));
    return out;
  }
  void set(Context& ctx, std::int64_t i, Padded values) { ops::copy(ctx, values.view(), at(i)); }
  /// Whether all between the matrices and their rows still is NaN.
  [[nodiscard]] bool gaps_untouched(Context& ctx) {
    for (std::int64_t i = 0; i < count_; ++i) {
      const TensorView gap = storage_.view().slice(0, i * (rows_ + 1) + rows_, 1);
      for (const double x : testing::device_values(ctx, gap))
        if (!std::isnan(x)) return false;
    }
    return storage_.gaps_untouched(ctx);
  }

 private:
  PaddedOnDevice storage_;
  std::int64_t count_, rows_, cols_;
};

class DeviceBatch : public testing::OnDevice {
 protected:
  Batch random_batch(std::int64_t count, std::int64_t rows, std::int64_t cols, Random& random) {
    Batch out(ctx, dtype(), count, rows, cols);
    for (std::int64_t i = 0; i < count; ++i)
      out.set(ctx, i, Padded(dtype(), testing::random_dense(rows, cols, random)));
    return out;
  }
  std::vector<std::int32_t> potrf(TensorView a) {
    Tensor info = Tensor::empty(ctx, {a.dim(0)}, DType::i32);
    const std::int64_t waits = host_waits();
    cuda::potrf_batched(ctx, a, info);
    EXPECT_EQ(host_waits(), waits);
    const Tensor host = testing::to_host(ctx, info);
    const auto* data = host.view().data<std::int32_t>();
    return {data, data + a.dim(0)};
  }
};
DKFAC_ON_DEVICE(DeviceBatch);

TEST_P(DeviceBatch, MultipliesEveryTranspose) {
  Random random(1);
  for (const std::int64_t count : {1, 3}) {
    for (const auto [m, n, k] : {std::array{1, 1, 1}, {4, 3, 5}, {20, 33, 7}}) {
      for (const Trans ta : kTransposedBatch) {
        for (const Trans tb : kTransposedBatch) {
          Batch a = ta == Trans::yes ? random_batch(count, k, m, random)
                                     : random_batch(count, m, k, random);
          Batch b = tb == Trans::yes ? random_batch(count, n, k, random)
                                     : random_batch(count, k, n, random);
          Batch c = random_batch(count, m, n, random);
          std::vector<Dense> expected;
          for (std::int64_t i = 0; i < count; ++i) {
            const Dense x = a.values(ctx, i), y = b.values(ctx, i);
            expected.push_back(testing::naive_gemm(
                0.5, ta == Trans::yes ? testing::transpose(x) : x,
                tb == Trans::yes ? testing::transpose(y) : y, 2, c.values(ctx, i)));
          }
          const std::int64_t waits = host_waits();
          cuda::gemm_batched(ctx, ta, tb, 0.5, a.view(), b.view(), 2, c.view());
          EXPECT_EQ(host_waits(), waits);
          for (std::int64_t i = 0; i < count; ++i) {
            EXPECT_TRUE(testing::near(c.values(ctx, i).data,
                                      expected[static_cast<std::size_t>(i)].data, tolerance()));
          }
          EXPECT_TRUE(c.gaps_untouched(ctx));
        }
      }
    }
  }
}

TEST_P(DeviceBatch, ScalesWhereNothingIsAdded) {
  Random random(2);
  for (const double beta : {0.0, 2.0}) {
    Batch c = beta == 0 ? Batch(ctx, dtype(), 2, 3, 4) : random_batch(2, 3, 4, random);
    Dense expected = c.values(ctx, 1);
    for (double& x : expected.data) x = beta == 0 ? 0 : beta * x;
    const Tensor a = Tensor::empty(ctx, {2, 3, 0}, dtype()),
                 b = Tensor::empty(ctx, {2, 0, 4}, dtype());
    cuda::gemm_batched(ctx, Trans::no, Trans::no, 1, a, b, beta, c.view());
    EXPECT_EQ(c.values(ctx, 1).data, expected.data);
    EXPECT_TRUE(c.gaps_untouched(ctx));
  }
}

TEST_P(DeviceBatch, FactorsAndInverts) {
  for (const std::int64_t n : {1, 2, 33, 70}) {
    const std::int64_t count = 4;
    Batch a(ctx, dtype(), count, n, n), inverse(ctx, dtype(), count, n, n);
    const auto known = [&](std::int64_t i) {
      return testing::decaying_matrix(n, 0.2 * static_cast<double>(i + 1) - 0.1);
    };
    for (std::int64_t i = 0; i < count; ++i) a.set(ctx, i, Padded::lower(dtype(), known(i).a));
    EXPECT_EQ(potrf(a.view()), std::vector<std::int32_t>(4, 0));
    const std::int64_t waits = host_waits();
    cuda::potri_batched(ctx, a.view(), inverse.view());
    EXPECT_EQ(host_waits(), waits);
    for (std::int64_t i = 0; i < count; ++i) {
      EXPECT_TRUE(
          testing::near(testing::lower(a.values(ctx, i)).data, known(i).factor.data, tolerance()));
      const Dense x = inverse.values(ctx, i);
      EXPECT_TRUE(testing::near(x.data, known(i).inverse.data, tolerance())) << n << " " << i;
      EXPECT_EQ(x.data, testing::transpose(x).data);
      // Control: the next matrix has another inverse.
      EXPECT_EQ(testing::near(x.data, known(i + 1).inverse.data, tolerance()), n == 1);
    }
    EXPECT_TRUE(a.gaps_untouched(ctx));
    EXPECT_TRUE(inverse.gaps_untouched(ctx));
  }
}

TEST_P(DeviceBatch, InvertsInFullPrecisionWhereProductsAreRounded) {
  Context rounding(Device::cuda(), {.tf32 = true});
  Random random(3);
  const testing::RankOneUpdate known = testing::rank_one_update(64, 1, random);
  Tensor info = Tensor::empty(rounding, {2}, DType::i32);
  Batch a(rounding, dtype(), 2, 64, 64), inverse(rounding, dtype(), 2, 64, 64);
  for (const std::int64_t i : {0, 1}) a.set(rounding, i, Padded::lower(dtype(), known.a));
  cuda::potrf_batched(rounding, a.view(), info);
  cuda::potri_batched(rounding, a.view(), inverse.view());
  EXPECT_TRUE(testing::near(inverse.values(rounding, 1).data, known.inverse.data, 1e-5));
}

TEST_P(DeviceBatch, ReportsEachMatrixAndLeavesTheOthersAlone) {
  const std::int64_t n = 12;
  Batch a(ctx, dtype(), 4, n, n), inverse(ctx, dtype(), 4, n, n);
  Dense nan = testing::min_matrix(n).a;
  nan(7, 3) = Padded::kNan;
  a.set(ctx, 0, Padded::lower(dtype(), testing::bad_minor_matrix(n, 5, -1)));
  a.set(ctx, 1, Padded::lower(dtype(), testing::min_matrix(n).a));
  a.set(ctx, 2, Padded::lower(dtype(), nan));
  a.set(ctx, 3, Padded::lower(dtype(), testing::bad_minor_matrix(n, n, 0)));
  const std::vector<std::int32_t> orders = potrf(a.view());
  EXPECT_GE(orders[2], 1);  // A NaN may reach earlier pivots of its block.
  EXPECT_LE(orders[2], 8);
  EXPECT_EQ(orders, (std::vector<std::int32_t>{5, 0, orders[2], 12}));
  cuda::potri_batched(ctx, a.view(), inverse.view());
  EXPECT_TRUE(
      testing::near(inverse.values(ctx, 1).data, testing::min_matrix(n).inverse.data, tolerance()));
}

TEST_P(DeviceBatch, AnswersEmptyBatches) {
  Batch none(ctx, dtype(), 0, 3, 3), points(ctx, dtype(), 2, 0, 0), other(ctx, dtype(), 2, 0, 0);
  EXPECT_TRUE(potrf(none.view()).empty());
  EXPECT_EQ(potrf(points.view()), (std::vector<std::int32_t>{0, 0}));
  cuda::potri_batched(ctx, points.view(), other.view());
  cuda::gemm_batched(ctx, Trans::no, Trans::no, 1, none.view(), none.view(), 0, none.view());
}

TEST_P(DeviceBatch, RefusesWhatDoesNotFit) {
  Tensor a = Tensor::empty(ctx, {2, 3, 3}, dtype()), b = Tensor::empty(ctx, {3, 3, 3}, dtype());
  Tensor info = Tensor::empty(ctx, {3}, DType::i32);
  const auto multiply = [&](TensorView x, TensorView y, TensorView z) {
    cuda::gemm_batched(ctx, Trans::no, Trans::no, 1, x, y, 0, z);
  };
  EXPECT_THROW(multiply(a, b, a), InvalidArgument);
  EXPECT_THROW(multiply(a, a, a.view().slice(2, 0, 2)), InvalidArgument);
  EXPECT_THROW(multiply(a, a.view().slice(1, 0, 2), a), InvalidArgument);
  const TensorView overlapping(a.view().raw(), dtype(), {2, 3, 3}, {8, 3, 1}, ctx.device());
  EXPECT_THROW(multiply(a, a, overlapping), InvalidArgument);
  EXPECT_THROW(cuda::potrf_batched(ctx, a, info), InvalidArgument);
  EXPECT_THROW(cuda::potrf_batched(ctx, a.view().slice(1, 0, 2), info.view().slice(0, 0, 2)),
               InvalidArgument);
  EXPECT_THROW(cuda::potri_batched(ctx, a, b), InvalidArgument);
}

}  // namespace
}  // namespace dkfac
