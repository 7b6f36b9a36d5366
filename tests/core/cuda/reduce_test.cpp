#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/ops.h"
#include "dkfac/core/random.h"

#include "support/not_finite.h"
#include "support/on_device.h"

namespace dkfac {
namespace {

using testing::device_values;
using testing::near;
using testing::PaddedOnDevice;
using testing::to_device;
using testing::values;

/// One block, many blocks, and more partial results than one block takes for f64.
const std::vector<std::int64_t> kCounts = {0, 1, 2, 5, 4095, 4097, 100'003};

class ReduceOnDevice : public testing::OnDevice {
 protected:
  Tensor random(Shape shape, std::uint64_t seed = 1) {
    Tensor out = Tensor::empty(cpu, shape, dtype());
    Random source(seed);
    if (out.numel() > 0) fill_normal(out, 0.5, 1, source);
    return out;
  }
  Tensor scalar(DType type) {
    Tensor out = Tensor::empty(ctx, {1}, type);
    ops::fill(ctx, out, kNan);
    return out;
  }
  double on_host(const Tensor& out) { return device_values(ctx, out)[0]; }
  template <class Op>
  double expected(Op op) {
    double out = kNan;
    op(view_of(&out, {1}));
    return out;
  }
  /// Sums of doubles in another order: far below what f32 data has.
  static ::testing::AssertionResult same(double a, double b, DType out = DType::f64) {
    const std::vector<double> x{a}, y{b};
    return near(x, y, out == DType::f64 ? 1e-12 : 1e-6);
  }
};
DKFAC_ON_DEVICE(ReduceOnDevice);

TEST_P(ReduceOnDevice, SumsAccumulateInDouble) {
  for (const std::int64_t n : kCounts) {
    const Tensor x = random({n}, 1), y = random({n}, 2);
    const Tensor dx = to_device(ctx, x), dy = to_device(ctx, y);
    for (const DType type : {DType::f64, DType::f32}) {
      Tensor out = scalar(type);
      ops::sum(ctx, dx, out);
      EXPECT_TRUE(same(on_host(out), expected([&](TensorView o) { ops::sum(cpu, x, o); }), type));
      ops::dot(ctx, dx, dy, out);
      EXPECT_TRUE(
          same(on_host(out), expected([&](TensorView o) { ops::dot(cpu, x, y, o); }), type));
    }
  }
}

TEST_P(ReduceOnDevice, DependsOnTheNumberOfElementsAlone) {
  // The same numbers at another alignment and with gaps between rows: the same bits.
  const Tensor x = random({61, 33});
  Tensor shifted = Tensor::zeros(ctx, {61 * 33 + 1}, dtype());
  PaddedOnDevice padded(ctx, x);
  ops::copy(ctx, x.view().flat(), shifted.view().slice(0, 1, 61 * 33));
  Tensor a = scalar(DType::f64), b = scalar(DType::f64), c = scalar(DType::f64);
  ops::sum(ctx, to_device(ctx, x), a);
  ops::sum(ctx, shifted.view().slice(0, 1, 61 * 33), b);
  ops::sum(ctx, padded.view(), c);
  EXPECT_EQ(on_host(a), on_host(b));
  EXPECT_EQ(on_host(a), on_host(c));
  EXPECT_NE(on_host(a), 0);
}

TEST_P(ReduceOnDevice, LargestMagnitudeTakesNanForInfinity) {
  for (const std::int64_t n : {1, 5, 4097, 70'001}) {
    Tensor x = random({n});
    ops::fill(cpu, x.view().slice(0, n / 2, 1), -1000.0);
    Tensor out = scalar(dtype());
    ops::max_abs(ctx, to_device(ctx, x), out);
    EXPECT_EQ(on_host(out), 1000.0);
    for (const double bad : {kNan, -kInf}) {
      for (const std::int64_t at : {std::int64_t{0}, n / 3, n - 1}) {
        Tensor y = Tensor::copy_of(cpu, x);
        ops::fill(cpu, y.view().slice(0, at, 1), bad);
        ops::max_abs(ctx, to_device(ctx, y), out);
        EXPECT_EQ(on_host(out), kInf);
      }
    }
  }
  Tensor none = Tensor::empty(ctx, {0}, dtype()), out = scalar(dtype());
  ops::max_abs(ctx, none, out);
  EXPECT_EQ(on_host(out), 0);
}

TEST_P(ReduceOnDevice, SumsColumns) {
  for (const auto& [rows, cols] : {std::pair<std::int64_t, std::int64_t>{0, 3},
                                   {1, 1},
                                   {2, 40},
                                   {511, 33},
                                   {513, 31},
                                   {3001, 5}}) {
    const Tensor x = random({rows, cols});
    PaddedOnDevice from(ctx, x);
    for (const double beta : {0.0, 0.5}) {
      Tensor host = Tensor::empty(cpu, {cols}, dtype());
      ops::fill(cpu, host, beta == 0 ? kNan : 2.0);
      Tensor frame = Tensor::empty(ctx, {cols, 2}, dtype());  // A strided result.
      ops::fill(ctx, frame, beta == 0 ? kNan : 2.0);
      const TensorView out(frame.view().raw(), dtype(), {cols}, Strides{2}, ctx.device());
      ops::col_sum(cpu, -1.5, x, beta, host);
      ops::col_sum(ctx, -1.5, from.view(), beta, out);
      // Both sum in f64, in other orders; f32 rounds the result.
      const double bound = dtype() == DType::f64 ? 1e-13 : 2 * epsilon();
      EXPECT_TRUE(near(device_values(ctx, out), values(cpu, host), bound));
    }
  }
}

TEST_P(ReduceOnDevice, NeverWaitsForTheDevice) {
  const Tensor x = to_device(ctx, random({100'003}));
  Tensor out = scalar(DType::f64);
  const auto before = testing::host_waits();
  ops::sum(ctx, x, out);
  ops::max_abs(ctx, x, out);
  ops::dot(ctx, x, x, out);
  EXPECT_EQ(testing::host_waits(), before);
}

}  // namespace
}  // namespace dkfac
