#include "core/shared/cuda/batched.h"

#include <algorithm>
#include <array>
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

/// Products of matrices that have no order in memory.
class Scattered {
 public:
  Scattered(Context& ctx, DType dtype, std::array<std::int64_t, 3> size, Trans ta, Trans tb,
            int count, Random& random)
      : ctx_(ctx), ta_(ta), tb_(tb) {
    const auto [m, n, k] = size;
    const auto make = [&](Trans t, std::int64_t rows, std::int64_t cols) {
      const Dense x = t == Trans::yes ? testing::random_dense(cols, rows, random)
                                      : testing::random_dense(rows, cols, random);
      return PaddedOnDevice(ctx, Padded(dtype, x).view());
    };
    for (int i = 0; i < count; ++i) {
      c_.push_back(make(Trans::no, m, n));
      b_.push_back(make(tb, k, n));
      a_.push_back(make(ta, m, k));
    }
  }
  [[nodiscard]] std::vector<cuda::MatrixProduct> products() {
    std::vector<cuda::MatrixProduct> out;
    for (std::size_t i = 0; i < a_.size(); ++i)
      out.push_back({a_[i].view(), b_[i].view(), c_[i].view()});
    return out;
  }
  /// 0.5 op(a) op(b) + 2 c of each.
  [[nodiscard]] std::vector<Dense> expected() {
    std::vector<Dense> out;
    for (std::size_t i = 0; i < a_.size(); ++i) {
      const Dense a = dense(a_[i]), b = dense(b_[i]);
      out.push_back(testing::naive_gemm(0.5, ta_ == Trans::yes ? testing::transpose(a) : a,
                                        tb_ == Trans::yes ? testing::transpose(b) : b, 2,
                                        dense(c_[i])));
    }
    return out;
  }
  [[nodiscard]] Dense result(std::size_t i) { return dense(c_[i]); }
  [[nodiscard]] bool gaps_untouched() {
    return std::ranges::all_of(c_, [&](auto& c) { return c.gaps_untouched(ctx_); });
  }

 private:
  Dense dense(PaddedOnDevice& x) {
    Dense out(x.view().dim(0), x.view().dim(1));
    out.data = x.values(ctx_);
    return out;
  }
  Context& ctx_;
  Trans ta_, tb_;
  std::vector<PaddedOnDevice> a_, b_, c_;
};

TEST_P(DeviceBatch, MultipliesMatricesAnywhereInOneCall) {
  Random random(4);
  cuda::MatrixAddresses addresses;
  for (const int count : {1, 3, 100}) {  // 100 products have more addresses than a kernel takes.
    for (const Trans ta : kTransposedBatch) {
      for (const Trans tb : kTransposedBatch) {
        Scattered x(ctx, dtype(), {4, 3, 5}, ta, tb, count, random);
        for (const bool again : {false, true}) {
          const std::vector<Dense> expected = x.expected();
          const std::int64_t waits = host_waits(), before = testing::products(),
                             kernels = testing::kernel_launches();
          cuda::gemm_each(ctx, ta, tb, 0.5, x.products(), 2, addresses);
          EXPECT_EQ(host_waits(), waits);
          EXPECT_EQ(testing::products() - before, testing::is_emulated() ? 1 : 0);
          // Addresses are written once, since the matrices of the second call are where they were.
          if (count == 1 || again) {
            EXPECT_EQ(testing::kernel_launches(), kernels);
          }
          for (std::size_t i = 0; i < expected.size(); ++i)
            EXPECT_TRUE(testing::near(x.result(i).data, expected[i].data, tolerance()))
                << count << " " << i;
          EXPECT_TRUE(x.gaps_untouched());
        }
      }
    }
  }
}

/// cuBLAS may read several elements at once, which it cannot decide by addresses on the device.
TEST_P(DeviceBatch, MultipliesOneByOneWhereAnAddressIsNotAligned) {
  Random random(5);
  for (const int operand : {0, 1, 2}) {
    Scattered x(ctx, dtype(), {4, 4, 4}, Trans::no, Trans::no, 3, random);
    std::vector<Dense> expected = x.expected();
    PaddedOnDevice moved(ctx, dtype(), 4, 5);
    std::vector<cuda::MatrixProduct> products = x.products();
    const TensorView view = moved.view().slice(1, 1, 4);
    // Operands of one kind have one row stride; that of [4,5] is 10.
    std::vector<PaddedOnDevice> aligned;
    for (cuda::MatrixProduct& p : products) {
      aligned.emplace_back(ctx, dtype(), 4, 5);
      const bool last = aligned.size() == products.size();
      const TensorView to = last ? view : aligned.back().view().slice(1, 0, 4);
      ops::copy(ctx, operand == 0 ? p.a : operand == 1 ? p.b : ConstTensorView(p.c), to);
      if (operand == 0) p.a = to;
      if (operand == 1) p.b = to;
      if (operand == 2) p.c = to;
    }
    const std::int64_t before = testing::products();
    cuda::MatrixAddresses addresses;
    cuda::gemm_each(ctx, Trans::no, Trans::no, 0.5, products, 2, addresses);
    EXPECT_EQ(testing::products() - before, testing::is_emulated() ? 3 : 0);
    for (std::size_t i = 0; i < products.size(); ++i)
      EXPECT_TRUE(
          testing::near(testing::device_values(ctx, products[i].c), expected[i].data, tolerance()));
  }
}

TEST_P(DeviceBatch, RefusesProductsThatDiffer) {
  Random random(6);
  Scattered x(ctx, dtype(), {4, 3, 5}, Trans::no, Trans::no, 2, random);
  Scattered other(ctx, dtype(), {4, 4, 5}, Trans::no, Trans::no, 1, random);
  Scattered wrong(ctx, dtype() == DType::f64 ? DType::f32 : DType::f64, {4, 3, 5}, Trans::no,
                  Trans::no, 1, random);
  const auto multiply = [&](std::vector<cuda::MatrixProduct> products) {
    cuda::MatrixAddresses addresses;
    cuda::gemm_each(ctx, Trans::no, Trans::no, 1, products, 0, addresses);
  };
  const std::vector<cuda::MatrixProduct> good = x.products();
  EXPECT_NO_THROW(multiply(good));
  EXPECT_NO_THROW(multiply({}));
  EXPECT_THROW(multiply({good[0], other.products()[0]}), InvalidArgument);
  EXPECT_THROW(multiply({good[0], wrong.products()[0]}), InvalidArgument);
  EXPECT_THROW(multiply({good[0], {good[1].a, good[1].b, Tensor::empty(ctx, {4, 3}, dtype())}}),
               InvalidArgument);  // Another row stride.
  const cuda::MatrixProduct unfit{good[0].a, good[0].a, good[0].c};
  EXPECT_THROW(multiply({unfit, unfit}), InvalidArgument);
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
