#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/ops.h"
#include "dkfac/core/random.h"
#include "dkfac/core/tensor.h"

#include "core/framed.h"
#include "support/near.h"
#include "support/not_finite.h"

namespace dkfac {
namespace {

using testing::Framed;
using testing::values;

/// Around vector widths, and large enough for several threads.
const std::vector<std::int64_t> kSizes = {0, 1, 2, 31, 32, 33, 257, 100'003};

template <class T>
class Elementwise : public ::testing::Test {
 protected:
  Context ctx_;

  std::vector<T> random(std::int64_t n, std::uint64_t seed = 1) {
    std::vector<T> x(static_cast<std::size_t>(n));
    Random source(seed);
    fill_normal(view_of(x.data(), {n}), 0, 1, source);
    return x;
  }
  static TensorView view(std::vector<T>& x) {
    return view_of(x.data(), {static_cast<std::int64_t>(x.size())});
  }
};

using Computing = ::testing::Types<float, double>;
TYPED_TEST_SUITE(Elementwise, Computing, testing::TypeNames);

TYPED_TEST(Elementwise, CopyIsExact) {
  for (const std::int64_t n : kSizes) {
    auto x = this->random(n);
    std::vector<TypeParam> y(x.size(), TypeParam{7});
    ops::copy(this->ctx_, this->view(x), this->view(y));
    ASSERT_EQ(x, y);
  }
}

TYPED_TEST(Elementwise, CopyWorksOverAnyStrides) {
  // A tensor of four dimensions, permuted by strides: x[i][j][k][l] is at index (l, j, i, k).
  constexpr std::int64_t kA = 3, kB = 5, kC = 7, kD = 11;
  auto x = this->random(kA * kB * kC * kD);
  const Strides permuted{kC, kA * kC, 1, kA * kB * kC};
  std::vector<TypeParam> y(x.size());
  TensorView target(y.data(), dtype_of<TypeParam>, {kA, kB, kC, kD}, permuted, Device::cpu());
  ops::copy(this->ctx_, view_of(x.data(), {kA, kB, kC, kD}), target);
  std::size_t next = 0;
  for (std::int64_t i = 0; i < kA; ++i) {
    for (std::int64_t j = 0; j < kB; ++j) {
      for (std::int64_t k = 0; k < kC; ++k) {
        for (std::int64_t l = 0; l < kD; ++l) {
          const std::int64_t at = i * kC + j * kA * kC + k + l * kA * kB * kC;
          ASSERT_EQ(x[next++], y[static_cast<std::size_t>(at)]);
        }
      }
    }
  }
  EXPECT_NE(x, y);  // Negative control: the order differs.
}

TYPED_TEST(Elementwise, CopyTransposesLargeMatrices) {
  constexpr std::int64_t kRows = 301, kColumns = 203;
  auto x = this->random(kRows * kColumns);
  std::vector<TypeParam> y(x.size());
  ops::copy(this->ctx_, view_of(x.data(), {kRows, kColumns}),
            view_of(y.data(), {kColumns, kRows}).transposed());
  for (std::int64_t r = 0; r < kRows; ++r) {
    for (std::int64_t c = 0; c < kColumns; ++c) {
      ASSERT_EQ(x[static_cast<std::size_t>(r * kColumns + c)],
                y[static_cast<std::size_t>(c * kRows + r)]);
    }
  }
}

TYPED_TEST(Elementwise, StaysInsideItsRows) {
  const auto poison = static_cast<TypeParam>(kNan);
  const auto same = [](TypeParam a, TypeParam) { return std::isnan(a); };
  for (const std::int64_t rows : {1, 3, 400}) {
    Framed<TypeParam> x(rows, 97, poison), y(rows, 97, poison);
    x.set([](auto r, auto c) { return static_cast<TypeParam>(r * 97 + c); });
    const auto is_double = [&](auto r, auto c) { return *y.at(r, c) == 2 * *x.at(r, c); };
    const auto all = [&](auto&& f) {
      for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t c = 0; c < 97; ++c) {
          if (!f(r, c)) return false;
        }
      }
      return true;
    };
    float count = 0;
    const TensorView counter = view_of(&count, {1});
    const auto reset = [&] { y.set([&](auto, auto) { return poison; }); };
    ops::cast(this->ctx_, x.view(), y.view(), 2.0);
    EXPECT_TRUE(all(is_double));
    reset();
    ops::axpby(this->ctx_, 2.0, x.view(), 0.0, y.view());
    EXPECT_TRUE(all(is_double));
    reset();
    ops::copy_checked(this->ctx_, 2.0, x.view(), y.view(), counter);
    EXPECT_TRUE(all(is_double));
    reset();
    ops::round_to(this->ctx_, dtype_of<TypeParam>, 2.0, x.view(), y.view(), counter);
    EXPECT_TRUE(all(is_double));
    EXPECT_EQ(count, 0.0F);
    ops::fill(this->ctx_, y.view(), 3.0);
    EXPECT_TRUE(all([&](auto r, auto c) { return *y.at(r, c) == 3; }));
    EXPECT_TRUE(x.untouched(same));
    EXPECT_TRUE(y.untouched(same));
  }
}

TYPED_TEST(Elementwise, AxpbyFollowsItsFormula) {
  for (const std::int64_t n : kSizes) {
    auto x = this->random(n, 1), y = this->random(n, 2);
    const auto old = y;
    ops::axpby(this->ctx_, -1.5, this->view(x), 0.25, this->view(y));
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double a = -1.5 * static_cast<double>(x[i]), b = 0.25 * static_cast<double>(old[i]);
      // Three roundings, of which each is at most half an eps of a magnitude.
      ASSERT_NEAR(y[i], a + b, 2 * testing::eps<TypeParam> * (std::abs(a) + std::abs(b)));
    }
  }
}

TYPED_TEST(Elementwise, AxpbyWithBetaZeroDoesNotReadY) {
  auto x = this->random(1000);
  std::vector<TypeParam> y(x.size(), static_cast<TypeParam>(kNan));
  ops::axpby(this->ctx_, 3.0, this->view(x), 0.0, this->view(y));
  for (std::size_t i = 0; i < x.size(); ++i) ASSERT_EQ(y[i], 3 * x[i]);
  // Negative control: any other beta keeps the NaN.
  y.assign(x.size(), static_cast<TypeParam>(kNan));
  ops::axpby(this->ctx_, 3.0, this->view(x), 1e-30, this->view(y));
  EXPECT_TRUE(std::isnan(y[500]));
}

TYPED_TEST(Elementwise, CopyCheckedCountsEveryNaNAndInf) {
  for (const std::int64_t n : kSizes) {
    auto x = this->random(n);
    std::vector<TypeParam> y(x.size());
    int planted = 0;
    for (std::size_t i = 0; i < x.size(); i += 17) {
      x[i] = static_cast<TypeParam>(planted % 3 == 0 ? kNan : planted % 3 == 1 ? kInf : -kInf);
      ++planted;
    }
    if (n > 2) x[2] = std::numeric_limits<TypeParam>::max();
    if (n > 1) x[1] = std::numeric_limits<TypeParam>::denorm_min();
    float count = 5;  // Added to, not set.
    ops::copy_checked(this->ctx_, 0.5, this->view(x), this->view(y), view_of(&count, {1}));
    ASSERT_EQ(count, static_cast<float>(5 + planted));
    for (std::size_t i = 0; i < x.size(); ++i) {
      ASSERT_TRUE(y[i] == x[i] / 2 || std::isnan(x[i])) << i;
      ASSERT_EQ(std::isnan(x[i]), std::isnan(y[i])) << i;
    }
  }
}

TYPED_TEST(Elementwise, CountNonfiniteFindsASingleOneAnywhere) {
  auto x = this->random(1000);
  for (const double bad : {kNan, -kNan, kInf, -kInf}) {
    for (std::size_t i = 0; i < x.size(); i += 37) {
      const auto kept = std::exchange(x[i], static_cast<TypeParam>(bad));
      float count = 0;
      ops::count_nonfinite(this->ctx_, this->view(x), view_of(&count, {1}));
      ASSERT_EQ(count, 1.0F);
      x[i] = kept;
    }
  }
  float none = 0;
  ops::count_nonfinite(this->ctx_, this->view(x), view_of(&none, {1}));
  EXPECT_EQ(none, 0.0F);
}

TYPED_TEST(Elementwise, RoundToGivesTheValuesOfTheNarrowType) {
  for (const std::int64_t n : kSizes) {
    auto x = this->random(n);
    std::vector<TypeParam> y(x.size());
    float lost = 0;
    ops::round_to(this->ctx_, DType::f16, 4.0, this->view(x), this->view(y), view_of(&lost, {1}));
    for (std::size_t i = 0; i < x.size(); ++i) ASSERT_EQ(y[i], to_float(to_f16(4 * x[i])));
    ops::round_to(this->ctx_, DType::bf16, 4.0, this->view(x), this->view(y), view_of(&lost, {1}));
    for (std::size_t i = 0; i < x.size(); ++i) ASSERT_EQ(y[i], to_float(to_bf16(4 * x[i])));
    EXPECT_EQ(lost, 0.0F);
    if (n > 0) {
      EXPECT_NE(x, y);  // Negative control: something was rounded.
    }
  }
}

TYPED_TEST(Elementwise, RoundToSaturatesInsteadOfOverflowing) {
  const double below = std::nextafter(65520.0F, 0.0F);
  std::vector<TypeParam> x;
  for (const double v : {65504.0, 65519.0, below, 65520.0, 1e30, kInf}) {
    x.push_back(static_cast<TypeParam>(v));
    x.push_back(static_cast<TypeParam>(-v));
  }
  x.push_back(static_cast<TypeParam>(kNan));
  std::vector<TypeParam> y(x.size());
  float lost = 0;
  ops::round_to(this->ctx_, DType::f16, 1.0, this->view(x), this->view(y), view_of(&lost, {1}));
  for (std::size_t i = 0; i + 1 < x.size(); ++i) {
    EXPECT_EQ(y[i], i % 2 == 0 ? kMaxF16 : -kMaxF16) << x[i];
  }
  EXPECT_TRUE(std::isnan(y.back()));
  ops::round_to(this->ctx_, DType::bf16, 1.0, this->view(x), this->view(y), view_of(&lost, {1}));
  EXPECT_TRUE(std::all_of(y.begin(), y.end() - 1, [](TypeParam v) { return std::isfinite(v); }));
  EXPECT_EQ(lost, 0.0F);
  EXPECT_TRUE(std::isinf(to_float(to_f16(65520.0F))));  // Negative control: the cast does overflow.
}

TYPED_TEST(Elementwise, RoundToCountsUnderflow) {
  // Half of f16's smallest subnormal is a tie with 0, which is even.
  std::vector<TypeParam> x;
  for (const double v : {0.0, -0.0, 0x1p-25, -0x1p-25, 0x1.8p-25, 0x1p-24, 0x1p-30, 1.0, kNan}) {
    x.push_back(static_cast<TypeParam>(v));
  }
  std::vector<TypeParam> y(x.size());
  float lost = 0;
  ops::round_to(this->ctx_, DType::f16, 1.0, this->view(x), this->view(y), view_of(&lost, {1}));
  EXPECT_EQ(lost, 3.0F);
  EXPECT_EQ(y[4], TypeParam(0x1p-24));
  // The scale keeps values that it lifts into range, and counts accumulate.
  ops::round_to(this->ctx_, DType::f16, 0x1p10, this->view(x), this->view(y), view_of(&lost, {1}));
  EXPECT_EQ(lost, 3.0F);
  ops::round_to(this->ctx_, DType::bf16, 1.0, this->view(x), this->view(y), view_of(&lost, {1}));
  EXPECT_EQ(lost, 3.0F);
}

TYPED_TEST(Elementwise, RoundToAWideTypeOnlyMultiplies) {
  auto x = this->random(1000);
  x[0] = static_cast<TypeParam>(kInf);
  std::vector<TypeParam> y(x.size());
  float lost = 0;
  ops::round_to(this->ctx_, DType::f64, 3.0, this->view(x), this->view(y), view_of(&lost, {1}));
  for (std::size_t i = 0; i < x.size(); ++i) ASSERT_EQ(y[i], 3 * x[i]);
  ops::round_to(this->ctx_, DType::f32, 3.0, this->view(x), this->view(y), view_of(&lost, {1}));
  for (std::size_t i = 0; i < x.size(); ++i) ASSERT_EQ(y[i], static_cast<float>(3 * x[i]));
}

TYPED_TEST(Elementwise, WorksInPlaceOnTheSameView) {
  auto x = this->random(5000);
  const auto old = x;
  ops::cast(this->ctx_, this->view(x), this->view(x), 2.0);
  for (std::size_t i = 0; i < x.size(); ++i) ASSERT_EQ(x[i], 2 * old[i]);
  float lost = 0;
  ops::round_to(this->ctx_, DType::f16, 1.0, this->view(x), this->view(x), view_of(&lost, {1}));
  for (std::size_t i = 0; i < x.size(); ++i) ASSERT_EQ(x[i], to_float(to_f16(2 * old[i])));
}

TYPED_TEST(Elementwise, AcceptsTensorsWithoutElements) {
  std::vector<TypeParam> none;
  float count = 1;
  const TensorView rows = view_of(none.data(), {0, 7}), counter = view_of(&count, {1});
  ops::copy(this->ctx_, rows, rows);
  ops::fill(this->ctx_, rows, 1.0);
  ops::cast(this->ctx_, rows, rows, 2.0);
  ops::axpby(this->ctx_, 1.0, rows, 1.0, rows);
  ops::copy_checked(this->ctx_, 1.0, rows, rows, counter);
  ops::round_to(this->ctx_, DType::f16, 1.0, rows, rows, counter);
  ops::count_nonfinite(this->ctx_, rows, counter);
  EXPECT_EQ(count, 1.0F);
}

TYPED_TEST(Elementwise, RefusesMismatches) {
  auto x = this->random(6), y = this->random(6);
  std::vector<double> wide(6);
  std::vector<float> narrow(6);
  std::vector<std::int32_t> ints(6);
  float count = 0;
  double wrong_count = 0;
  Context& ctx = this->ctx_;
  const TensorView a = this->view(x), b = this->view(y), counter = view_of(&count, {1});
  const TensorView short_b = b.slice(0, 0, 5), matrix = b.reshape({2, 3});
  const TensorView other =
      dtype_of<TypeParam> == DType::f64 ? view_of(narrow.data(), {6}) : view_of(wide.data(), {6});
  const TensorView integers = view_of(ints.data(), {6});
  const TensorView far(y.data(), dtype_of<TypeParam>, {6}, Device::cuda());
  for (const TensorView& bad : {short_b, matrix, other, integers, far}) {
    EXPECT_THROW(ops::axpby(ctx, 1, a, 1, bad), InvalidArgument);
    EXPECT_THROW(ops::copy_checked(ctx, 1, a, bad, counter), InvalidArgument);
    EXPECT_THROW(ops::round_to(ctx, DType::f16, 1, a, bad, counter), InvalidArgument);
  }
  EXPECT_THROW(ops::copy(ctx, a, short_b), InvalidArgument);
  EXPECT_THROW(ops::copy(ctx, a, other), InvalidArgument);
  EXPECT_THROW(ops::cast(ctx, a, matrix), InvalidArgument);
  EXPECT_THROW(ops::cast(ctx, a, integers), InvalidArgument);
  EXPECT_THROW(ops::cast(ctx, integers, a), InvalidArgument);
  EXPECT_THROW(ops::round_to(ctx, DType::i32, 1, a, b, counter), InvalidArgument);
  EXPECT_THROW(ops::copy_checked(ctx, 1, a, b, view_of(&wrong_count, {1})), InvalidArgument);
  EXPECT_THROW(ops::copy_checked(ctx, 1, a, b, view_of(narrow.data(), {6})), InvalidArgument);
  EXPECT_THROW(ops::count_nonfinite(ctx, integers, counter), InvalidArgument);
  EXPECT_EQ(count, 0.0F);
}

TEST(Copy, ToAMissingDeviceSaysSo) {
  if (available_devices().size() > 1) GTEST_SKIP() << "SKIPPED: there is a device";
  EXPECT_THROW(Context(Device::cuda()), DeviceError);
  Context ctx;
  std::array<float, 4> data{};
  const TensorView far(data.data(), DType::f32, {4}, Device::cuda());
  // Without CUDA there is nothing to copy with; with it, only a context of the device copies there.
  EXPECT_THROW(ops::copy(ctx, view_of(data.data(), {4}), far), Error);
}

TEST(Fill, SetsEveryType) {
  Context ctx;
  std::array<double, 5> d{};
  std::array<f16, 5> h{};
  std::array<bf16, 5> b{};
  std::array<std::int32_t, 5> i{};
  ops::fill(ctx, view_of(d.data(), {5}), 0.1);
  ops::fill(ctx, view_of(h.data(), {5}), -2.5);
  ops::fill(ctx, view_of(b.data(), {5}), kInf);
  ops::fill(ctx, view_of(i.data(), {5}), -7.0);
  EXPECT_EQ(d[4], 0.1);
  EXPECT_EQ(to_float(h[4]), -2.5F);
  EXPECT_EQ(to_float(b[4]), INFINITY);
  EXPECT_EQ(i[4], -7);
  EXPECT_THROW(ops::fill(ctx, view_of(i.data(), {5}), 0.5), InvalidArgument);
  EXPECT_THROW(ops::fill(ctx, view_of(i.data(), {5}), kNan), InvalidArgument);
  EXPECT_THROW(ops::fill(ctx, view_of(i.data(), {5}), 0x1p31), InvalidArgument);
}

}  // namespace
}  // namespace dkfac
