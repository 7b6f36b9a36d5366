#include <cmath>
#include <cstring>
#include <numeric>
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
using testing::to_host;
using testing::values;

const std::vector<std::int64_t> kSizes = {0, 1, 2, 3, 7, 257, 40'001};
constexpr DType kFloating[] = {DType::f64, DType::f32, DType::bf16, DType::f16};

class ElementwiseOnDevice : public testing::OnDevice {
 protected:
  Tensor random(Shape shape, std::uint64_t seed = 1) {
    Tensor out = Tensor::empty(cpu, shape, dtype());
    Random source(seed);
    if (out.numel() > 0) fill_normal(out, 0, 1, source);
    return out;
  }
  Tensor counter() { return Tensor::zeros(ctx, {1}); }
};
DKFAC_ON_DEVICE(ElementwiseOnDevice);

void expect_same_bits(const Tensor& a, const Tensor& b) {
  ASSERT_EQ(a.bytes(), b.bytes());
  EXPECT_EQ(std::memcmp(a.view().raw(), b.view().raw(), a.bytes()), 0);
}

/// Equality except for the bits of a NaN, which a device does not preserve.
void expect_same_numbers(Context& cpu, const Tensor& a, const Tensor& b) {
  const std::vector<double> x = values(cpu, a), y = values(cpu, b);
  ASSERT_EQ(x.size(), y.size());
  std::size_t others = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const bool same =
        std::isnan(y[i]) ? std::isnan(x[i]) : std::memcmp(&x[i], &y[i], sizeof(double)) == 0;
    others += same ? 0 : 1;
  }
  EXPECT_EQ(others, 0U);
}

TEST_P(ElementwiseOnDevice, AxpbyFollowsTheHostToTheBit) {
  for (const std::int64_t n : kSizes) {
    const Tensor x = random({n}, 1);
    Tensor y = random({n}, 2);
    Tensor there = to_device(ctx, y);
    ops::axpby(ctx, -1.5, to_device(ctx, x), 0.25, there);
    ops::axpby(cpu, -1.5, x, 0.25, y);
    expect_same_bits(to_host(ctx, there), y);
  }
}

TEST_P(ElementwiseOnDevice, AxpbyWithBetaZeroDoesNotRead) {
  const Tensor x = random({1000});
  Tensor y = Tensor::empty(ctx, {1000}, dtype());
  ops::fill(ctx, y, kNan);
  ops::axpby(ctx, 2.0, to_device(ctx, x), 0.0, y);
  Tensor expected = Tensor::empty(cpu, {1000}, dtype());
  ops::axpby(cpu, 2.0, x, 0.0, expected);
  expect_same_bits(to_host(ctx, y), expected);
}

TEST_P(ElementwiseOnDevice, StaysInsideItsRows) {
  for (const auto& [rows, cols] :
       {std::pair<std::int64_t, std::int64_t>{1, 1}, {3, 97}, {50, 3}, {5, 300}}) {
    const Tensor x = random({rows, cols});
    PaddedOnDevice from(ctx, x), to(ctx, dtype(), rows, cols);
    Tensor count = counter();
    const std::vector<double> plain = values(cpu, x);
    std::vector<double> twice = plain;
    for (double& v : twice) v *= 2;
    const auto expect_twice = [&] {
      EXPECT_EQ(to.values(ctx), twice);
      EXPECT_TRUE(to.gaps_untouched(ctx));
      ops::fill(ctx, to.view(), kNan);
    };
    ops::cast(ctx, from.view(), to.view(), 2.0);
    expect_twice();
    ops::axpby(ctx, 2.0, from.view(), 0.0, to.view());
    expect_twice();
    ops::copy_checked(ctx, 2.0, from.view(), to.view(), count);
    expect_twice();
    ops::round_to(ctx, dtype(), 2.0, from.view(), to.view(), count);
    expect_twice();
    EXPECT_EQ(device_values(ctx, count), std::vector<double>{0});
    EXPECT_EQ(from.values(ctx), plain);
  }
}

TEST_P(ElementwiseOnDevice, CountsWhatIsNotFinite) {
  for (const std::int64_t n : {1, 3, 1000, 40'001}) {
    Tensor x = random({n});
    ops::fill(cpu, x.view().slice(0, n / 2, 1), kNan);
    ops::fill(cpu, x.view().slice(0, n - 1, 1), -kInf);
    Tensor count = counter(), expected = Tensor::zeros(cpu, {1});
    ops::fill(ctx, count, 5.0);
    ops::fill(cpu, expected, 5.0);
    Tensor y = Tensor::empty(ctx, {n}, dtype()), host = Tensor::empty(cpu, {n}, dtype());
    ops::copy_checked(ctx, 3.0, to_device(ctx, x), y, count);
    ops::copy_checked(cpu, 3.0, x, host, expected);
    expect_same_numbers(cpu, to_host(ctx, y), host);
    expect_same_bits(to_host(ctx, count), expected);
    ops::count_nonfinite(ctx, to_device(ctx, x), count);
    ops::count_nonfinite(cpu, x, expected);
    expect_same_bits(to_host(ctx, count), expected);
  }
}

TEST_P(ElementwiseOnDevice, RoundsAndCountsUnderflowLikeTheHost) {
  Tensor x = random({5001});
  ops::axpby(cpu, 1e6, x.view().slice(0, 0, 900), 0.0, x.view().slice(0, 900, 900));
  ops::axpby(cpu, 1e-9, x.view().slice(0, 0, 900), 0.0, x.view().slice(0, 1800, 900));
  ops::fill(cpu, x.view().slice(0, 2700, 1), kInf);
  ops::fill(cpu, x.view().slice(0, 2701, 1), kNan);
  ops::fill(cpu, x.view().slice(0, 2702, 1), 0);
  for (const DType type : kFloating) {
    Tensor lost = counter(), expected = Tensor::zeros(cpu, {1});
    Tensor y = Tensor::empty(ctx, x.shape(), dtype()),
           host = Tensor::empty(cpu, x.shape(), dtype());
    ops::round_to(ctx, type, 0.75, to_device(ctx, x), y, lost);
    ops::round_to(cpu, type, 0.75, x, host, expected);
    expect_same_numbers(cpu, to_host(ctx, y), host);
    expect_same_bits(to_host(ctx, lost), expected);
    EXPECT_TRUE(type != DType::f16 || values(cpu, expected)[0] > 0);
  }
}

TEST_P(ElementwiseOnDevice, WorksInPlaceAndNeverWaits) {
  const Tensor x = random({1001});
  Tensor there = to_device(ctx, x), count = counter();
  const auto before = testing::host_waits();
  ops::cast(ctx, there, there, 2.0);
  ops::axpby(ctx, 1.0, there, 1.0, there);
  ops::copy_checked(ctx, 0.25, there, there, count);
  ops::fill(ctx, count, 0);
  EXPECT_EQ(testing::host_waits(), before);
  expect_same_bits(to_host(ctx, there), x);
}

/// Every 16-bit value, from and to every dtype.
TEST(CastOnDevice, RoundsAll16BitValuesLikeTheHost) {
  Context ctx(Device::cuda()), cpu(Device::cpu(), {.threads = 1});
  std::vector<std::uint16_t> bits(65536);
  std::iota(bits.begin(), bits.end(), std::uint16_t{0});
  for (const DType from : {DType::f16, DType::bf16}) {
    const ConstTensorView x(bits.data(), from, {65536});
    for (const DType to : kFloating) {
      for (const double scale : {1.0, 3.0, 0x1p-20}) {
        Tensor host = Tensor::empty(cpu, x.shape(), to), there = Tensor::empty(ctx, x.shape(), to);
        ops::cast(cpu, x, host, scale);
        ops::cast(ctx, to_device(ctx, x), there, scale);
        expect_same_numbers(cpu, to_host(ctx, there), host);
      }
    }
  }
}

/// The neighbours of every 16-bit value and the midpoints between them, from f32 and f64.
TEST(CastOnDevice, BreaksAllTiesLikeTheHost) {
  Context ctx(Device::cuda()), cpu(Device::cpu(), {.threads = 1});
  for (const DType to : {DType::f16, DType::bf16}) {
    std::vector<std::uint16_t> bits(65536);
    std::iota(bits.begin(), bits.end(), std::uint16_t{0});
    const std::vector<double> exact = values(cpu, ConstTensorView(bits.data(), to, {65536}));
    std::vector<double> x;
    for (std::size_t i = 0; i + 1 < exact.size(); ++i) {
      const double middle = (exact[i] + exact[i + 1]) / 2;
      for (const double v : {middle, std::nextafter(middle, kInf), std::nextafter(middle, -kInf)})
        x.push_back(v);
    }
    const auto n = static_cast<std::int64_t>(x.size());
    for (const DType from : {DType::f64, DType::f32}) {
      Tensor source = Tensor::empty(cpu, {n}, from), host = Tensor::empty(cpu, {n}, to);
      Tensor there = Tensor::empty(ctx, {n}, to);
      ops::cast(cpu, view_of(x.data(), {n}), source);
      ops::cast(cpu, source, host);
      ops::cast(ctx, to_device(ctx, source), there);
      expect_same_bits(to_host(ctx, there), host);
    }
  }
}

TEST(CastOnDevice, TakesViewsThatAreNotAligned) {
  Context ctx(Device::cuda()), cpu(Device::cpu(), {.threads = 1});
  std::vector<double> x(100);
  std::iota(x.begin(), x.end(), 0.0);
  for (const DType to : kFloating) {
    Tensor there = Tensor::zeros(ctx, {110}, to), host = Tensor::zeros(cpu, {110}, to);
    const Tensor source = to_device(ctx, view_of(x.data(), {100}));
    for (const std::int64_t shift : {0, 1, 3}) {
      ops::cast(ctx, source.view().slice(0, shift, 90), there.view().slice(0, 7, 90));
      ops::cast(cpu, view_of(x.data() + shift, {90}), host.view().slice(0, 7, 90));
      expect_same_bits(to_host(ctx, there), host);
    }
  }
}

}  // namespace
}  // namespace dkfac
