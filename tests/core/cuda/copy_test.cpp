#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/ops.h"
#include "dkfac/core/tensor.h"

#include "support/on_device.h"

namespace dkfac {
namespace {

using testing::device_values;
using testing::to_device;
using testing::to_host;

/// Copies take every dtype; 0, 1, 2, ... in each.
class CopyOnDevice : public testing::OnDevice {
 protected:
  Tensor counting(Shape shape) {
    std::vector<double> numbers(static_cast<std::size_t>(shape.numel()));
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<double>(i);
    Tensor out = Tensor::empty(cpu, shape, dtype());
    if (dtype() == DType::i32) {
      for (std::size_t i = 0; i < numbers.size(); ++i)
        out.data<std::int32_t>()[i] = static_cast<std::int32_t>(i);
    } else if (!numbers.empty()) {
      ops::cast(cpu, view_of(numbers.data(), shape), out);
    }
    return out;
  }
  static void expect_same(const Tensor& a, const Tensor& b) {
    ASSERT_EQ(a.shape(), b.shape());
    EXPECT_EQ(std::memcmp(a.view().raw(), b.view().raw(), a.bytes()), 0);
  }
};
INSTANTIATE_TEST_SUITE_P(DTypes, CopyOnDevice,
                         ::testing::Values(DType::f64, DType::f32, DType::bf16, DType::f16,
                                           DType::i32),
                         testing::name_of_dtype);

TEST_P(CopyOnDevice, ThereAndBack) {
  for (const std::int64_t n : {0, 1, 2, 3, 31, 1000, 100'003}) {
    const Tensor x = counting({n});
    expect_same(to_host(ctx, to_device(ctx, x)), x);
  }
  const Tensor x = counting({40}), y = counting({41});
  EXPECT_NE(std::memcmp(x.view().raw(), static_cast<const char*>(y.view().raw()) + size_of(dtype()),
                        x.bytes()),
            0);  // Negative control of the comparison.
}

TEST_P(CopyOnDevice, BetweenRowsWithGaps) {
  const Tensor x = counting({9, 12});
  const auto inner = [](ConstTensorView v) { return v.slice(0, 1, 7).slice(1, 3, 5); };
  const Tensor expected = Tensor::copy_of(cpu, inner(x));
  // Gaps on the host only, on the device only, on both sides.
  expect_same(to_host(ctx, to_device(ctx, inner(x))), expected);
  const Tensor there = to_device(ctx, x);
  expect_same(to_host(ctx, inner(there)), expected);
  Tensor frame = Tensor::zeros(ctx, {9, 12}, dtype());
  ops::copy(ctx, inner(x), frame.view().slice(0, 1, 7).slice(1, 3, 5));
  Tensor same = Tensor::zeros(cpu, {9, 12}, dtype());
  ops::copy(cpu, inner(x), same.view().slice(0, 1, 7).slice(1, 3, 5));
  expect_same(to_host(ctx, frame), same);  // The surrounding elements are unchanged.
}

TEST_P(CopyOnDevice, BetweenAnyStrides) {
  constexpr std::int64_t kA = 3, kB = 5, kC = 7, kD = 11;
  const Shape shape{kA, kB, kC, kD};
  const Tensor x = counting(shape);
  const Strides permuted{kC, kA * kC, 1, kA * kB * kC};
  Tensor expected = Tensor::empty(cpu, {shape.numel()}, dtype());
  ops::copy(cpu, x, TensorView(expected.view().raw(), dtype(), shape, permuted, Device::cpu()));
  const auto permuted_view = [&](TensorView flat) {
    return TensorView(flat.raw(), dtype(), shape, permuted, flat.device());
  };
  Tensor a = Tensor::empty(ctx, {shape.numel()}, dtype()), b = Tensor::empty(ctx, shape, dtype());
  ops::copy(ctx, x, permuted_view(a));  // host -> device
  expect_same(to_host(ctx, a), expected);
  ops::copy(ctx, permuted_view(a), b);  // device -> device
  expect_same(to_host(ctx, b), x);
  Tensor back = Tensor::empty(cpu, {shape.numel()}, dtype());
  ops::copy(ctx, b, permuted_view(back));  // device -> host
  expect_same(back, expected);
  Tensor there = Tensor::empty(ctx, shape, dtype());
  ops::copy(ctx, permuted_view(back), there);  // a permuted host source
  expect_same(to_host(ctx, there), x);
}

TEST_P(CopyOnDevice, Transposes) {
  for (const auto& [rows, cols] :
       {std::pair<std::int64_t, std::int64_t>{1, 40}, {33, 65}, {70, 3}}) {
    const Tensor x = counting({rows, cols});
    const Tensor there = to_device(ctx, x);
    Tensor expected = Tensor::empty(cpu, {cols, rows}, dtype());
    ops::copy(cpu, x, expected.view().transposed());
    Tensor a = Tensor::empty(ctx, {cols, rows}, dtype());
    ops::copy(ctx, there, a.view().transposed());
    expect_same(to_host(ctx, a), expected);
    Tensor b = Tensor::empty(ctx, {cols, rows}, dtype());
    ops::copy(ctx, there.view().transposed(), b);
    expect_same(to_host(ctx, b), expected);
  }
}

TEST_P(CopyOnDevice, ReadsPageableSourcesBeforeItReturns) {
  Tensor x = counting({1000});
  const Tensor kept = Tensor::copy_of(cpu, x);
  Tensor there = Tensor::empty(ctx, {1000}, dtype());
  const auto before = testing::host_waits();
  ops::copy(ctx, x, there);
  EXPECT_EQ(testing::host_waits(), before);
  ops::fill(cpu, x, 0);
  expect_same(to_host(ctx, there), kept);
}

/// Whatever the runtime does, which may leave both for later.
TEST_P(CopyOnDevice, HasReadAndWrittenPageableMemoryWhenItReturns) {
  for (const std::int64_t n : {9, 300}) {
    Tensor x = counting({n, n});
    const Tensor kept = Tensor::copy_of(cpu, x);
    const auto turned = [&](TensorView flat) {
      return TensorView(flat.raw(), dtype(), {n, n}, {1, n}, flat.device());
    };
    Tensor there = Tensor::empty(ctx, {n, n}, dtype()), back = Tensor::empty(cpu, {n, n}, dtype());
    ops::copy(ctx, x, there);
    ops::fill(cpu, x, 0);
    ops::copy(ctx, there, back);
    expect_same(back, kept);
    ops::copy(ctx, kept, turned(there));
    ops::copy(ctx, turned(there), back);
    expect_same(back, kept);
    ops::copy(ctx, there, turned(back));
    expect_same(back, kept);
  }
}

TEST_P(CopyOnDevice, FillReachesAllAndNothingElse) {
  for (const std::int64_t n : {0, 1, 2, 7, 1001}) {
    Tensor frame = Tensor::zeros(ctx, {3, n + 9}, dtype());
    ops::fill(ctx, frame.view().slice(0, 1, 1).slice(1, 3, n), -7);
    Tensor expected = Tensor::zeros(cpu, {3, n + 9}, dtype());
    ops::fill(cpu, expected.view().slice(0, 1, 1).slice(1, 3, n), -7);
    expect_same(to_host(ctx, frame), expected);
  }
}

TEST(CopyOnDevice, RefusesAnotherDevice) {
  Context ctx(Device::cuda()), host;
  Tensor x = Tensor::zeros(ctx, {3}), y = Tensor::zeros(host, {3});
  EXPECT_THROW(ops::copy(host, x, y), InvalidArgument);
  EXPECT_THROW(ops::copy(host, y, x), InvalidArgument);
}

}  // namespace
}  // namespace dkfac
