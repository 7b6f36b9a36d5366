#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/ops.h"
#include "dkfac/core/random.h"
#include "dkfac/core/tensor.h"

namespace dkfac {
namespace {

double wide(double x) { return x; }
double wide(float x) { return x; }
double wide(f16 x) { return to_float(x); }
double wide(bf16 x) { return to_float(x); }

template <class D>
D round_once(double x) {
  if constexpr (std::is_same_v<D, f16>) return to_f16(x);
  if constexpr (std::is_same_v<D, bf16>) return to_bf16(x);
  if constexpr (std::is_same_v<D, float>) return static_cast<float>(x);
  if constexpr (std::is_same_v<D, double>) return x;
}

/// Values over the whole range of f16, some of them beyond it or too small for it.
std::vector<double> samples() {
  std::vector<double> out = {0.0, -0.0, 65504, 65520, -1e6, 0x1p-25, 0x1.8p-25, 0x1p-130, 1e300};
  out.push_back(std::numeric_limits<double>::infinity());
  Random random(11);
  for (int i = 0; i < 20'000; ++i) {
    out.push_back(std::ldexp(random.normal(), static_cast<int>(random.below(60)) - 40));
  }
  return out;
}

template <class S, class D>
void expect_cast(double scale) {
  Context ctx;
  std::vector<S> source;
  for (const double x : samples()) source.push_back(round_once<S>(x));
  std::vector<D> target(source.size());
  const auto n = static_cast<std::int64_t>(source.size());
  ops::cast(ctx, view_of(source.data(), {n}), view_of(target.data(), {n}), scale);
  for (std::size_t i = 0; i < source.size(); ++i) {
    // The product of a value of S and a scale of few bits is exact in f64: this rounds once.
    const D expected = round_once<D>(scale * wide(source[i]));
    ASSERT_EQ(wide(target[i]), wide(expected)) << wide(source[i]) << " * " << scale;
    ASSERT_EQ(std::signbit(wide(target[i])), std::signbit(wide(expected)));
  }
}

template <class S>
void expect_casts() {
  for (const double scale : {1.0, 1024.0, 0x1p-20, 3.0, 0x1p-140, -1.0}) {
    expect_cast<S, double>(scale);
    expect_cast<S, float>(scale);
    expect_cast<S, f16>(scale);
    expect_cast<S, bf16>(scale);
  }
}

TEST(Cast, RoundsF64Once) { expect_casts<double>(); }
TEST(Cast, RoundsF32Once) { expect_casts<float>(); }
TEST(Cast, RoundsF16Once) { expect_casts<f16>(); }
TEST(Cast, RoundsBf16Once) { expect_casts<bf16>(); }

TEST(Cast, FromF64DoesNotGoThroughFloat) {
  Context ctx;
  const double x = 1.0 + 0x1p-11 + 0x1p-40;
  f16 direct, twice;
  auto through = static_cast<float>(x);
  ops::cast(ctx, view_of(&x, {1}), view_of(&direct, {1}));
  ops::cast(ctx, view_of(&through, {1}), view_of(&twice, {1}));
  EXPECT_EQ(direct.bits, 0x3C01);
  EXPECT_EQ(twice.bits, 0x3C00);  // Negative control.
}

TEST(Cast, KeepsNaN) {
  Context ctx;
  std::vector<float> x(100, std::nanf(""));
  std::vector<f16> y(100);
  ops::cast(ctx, view_of(x.data(), {100}), view_of(y.data(), {100}), 8.0);
  EXPECT_TRUE(std::all_of(y.begin(), y.end(), [](f16 v) { return std::isnan(to_float(v)); }));
}

TEST(Cast, WorksOverStrides) {
  Context ctx;
  std::array<float, 6> x{1, 2, 3, 4, 5, 6};
  std::array<f16, 6> y{};
  ops::cast(ctx, view_of(x.data(), {2, 3}).transposed(), view_of(y.data(), {3, 2}));
  std::array<float, 6> back{};
  std::transform(y.begin(), y.end(), back.begin(), [](f16 v) { return to_float(v); });
  EXPECT_EQ(back, (std::array<float, 6>{1, 4, 2, 5, 3, 6}));
}

TEST(Cast, LargeTensorsAreCastByAllThreadsAlike) {
  Context ctx;
  constexpr std::int64_t kCount = 300'007;
  Tensor x = Tensor::empty(ctx, {kCount}, DType::f32);
  Random random(12);
  fill_normal(x, 0, 10, random);
  Tensor y = Tensor::empty(ctx, {kCount}, DType::bf16);
  ops::cast(ctx, x, y);
  for (std::int64_t i = 0; i < kCount; ++i) {
    ASSERT_EQ(y.data<bf16>()[i], to_bf16(x.data<float>()[i]));
  }
}

}  // namespace
}  // namespace dkfac
