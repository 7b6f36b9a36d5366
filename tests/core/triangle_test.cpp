#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/ops.h"
#include "dkfac/core/random.h"
#include "dkfac/core/tensor.h"

#include "core/framed.h"
#include "support/near.h"

namespace dkfac {
namespace {

using testing::Framed;

template <class T>
class Triangle : public ::testing::Test {
 protected:
  static constexpr T kPoison = std::numeric_limits<T>::quiet_NaN();
  Context ctx_;

  /// Lower triangle of a symmetric matrix; NaN above the diagonal and around it.
  static Framed<T> lower(std::int64_t d, std::uint64_t seed = 1) {
    Framed<T> a(d, d, kPoison);
    Random random(seed);
    a.set([&](auto r, auto c) { return c <= r ? static_cast<T>(random.normal()) : kPoison; });
    return a;
  }
  static bool same(T a, T b) { return std::isnan(a) ? std::isnan(b) : a == b; }
};

using Computing = ::testing::Types<float, double>;
TYPED_TEST_SUITE(Triangle, Computing, testing::TypeNames);

std::vector<std::int64_t> orders() {
  std::vector<std::int64_t> all;
  for (std::int64_t d = 0; d <= 65; ++d) all.push_back(d);
  all.push_back(513);
  return all;
}

TYPED_TEST(Triangle, RoundTripsBitForBitAndSymmetrically) {
  for (const std::int64_t d : orders()) {
    auto a = this->lower(d);
    Tensor packed = Tensor::empty(this->ctx_, {ops::packed_size(d)}, dtype_of<TypeParam>);
    ops::pack_lower(this->ctx_, a.view(), packed);
    for (const auto upper : {ops::Upper::untouched, ops::Upper::filled}) {
      Framed<TypeParam> b(d, d, this->kPoison);
      ops::unpack_lower(this->ctx_, packed, b.view(), upper);
      ASSERT_TRUE(b.untouched(this->same));
      for (std::int64_t r = 0; r < d; ++r) {
        for (std::int64_t c = 0; c <= r; ++c) {
          ASSERT_EQ(*b.at(r, c), *a.at(r, c)) << d << ": " << r << ", " << c;
          if (c == r) continue;
          if (upper == ops::Upper::filled) {
            ASSERT_EQ(*b.at(c, r), *a.at(r, c)) << d << ": " << r << ", " << c;
          } else {
            ASSERT_TRUE(std::isnan(*b.at(c, r))) << d << ": " << r << ", " << c;
          }
        }
      }
    }
  }
}

TEST(LargeTriangle, RoundTripsTheWidestFactorOfResNet50) {
  constexpr std::int64_t kWidth = 4608;
  Context ctx;
  Tensor a = Tensor::empty(ctx, {kWidth, kWidth}), b = Tensor::empty(ctx, {kWidth, kWidth});
  Tensor packed = Tensor::empty(ctx, {ops::packed_size(kWidth)});
  float* p = a.data<float>();
  for (std::int64_t r = 0; r < kWidth; ++r) {
    for (std::int64_t c = 0; c <= r; ++c) p[r * kWidth + c] = static_cast<float>(r * 5000 + c);
  }
  ops::fill(ctx, b, -1.0);
  ops::pack_lower(ctx, a, packed);
  ops::unpack_lower(ctx, packed, b, ops::Upper::filled);
  const float* q = b.data<float>();
  bool equal = true;
  for (std::int64_t r = 0; r < kWidth; ++r) {
    for (std::int64_t c = 0; c <= r; ++c) {
      const float expected = static_cast<float>(r * 5000 + c);
      equal = equal && q[r * kWidth + c] == expected && q[c * kWidth + r] == expected;
    }
  }
  EXPECT_TRUE(equal);
}

TYPED_TEST(Triangle, PacksRowAfterRow) {
  Framed<TypeParam> a(4, 4, this->kPoison);
  a.set([](auto r, auto c) { return static_cast<TypeParam>(10 * r + c); });
  std::vector<TypeParam> packed(10);
  ops::pack_lower(this->ctx_, a.view(), view_of(packed.data(), {10}));
  EXPECT_EQ(packed, (std::vector<TypeParam>{0, 10, 11, 20, 21, 22, 30, 31, 32, 33}));
}

TYPED_TEST(Triangle, CountsNonfinitesOfTheLowerTriangleOnly) {
  for (const std::int64_t d : {1, 7, 65, 400}) {
    auto a = this->lower(d);  // NaN in the whole upper triangle.
    Tensor packed = Tensor::empty(this->ctx_, {ops::packed_size(d)}, dtype_of<TypeParam>);
    float bad = 0;
    ops::pack_lower(this->ctx_, a.view(), packed, view_of(&bad, {1}));
    EXPECT_EQ(bad, 0.0F);
    *a.at(d - 1, 0) = this->kPoison;
    *a.at(d - 1, d - 1) = -std::numeric_limits<TypeParam>::infinity();
    ops::pack_lower(this->ctx_, a.view(), packed, view_of(&bad, {1}));
    EXPECT_EQ(bad, d == 1 ? 1.0F : 2.0F);
    ops::pack_lower(this->ctx_, a.view(), packed);  // Without a counter nothing is counted.
    EXPECT_EQ(bad, d == 1 ? 1.0F : 2.0F);
  }
}

TYPED_TEST(Triangle, TraceOfThePackedMatrix) {
  for (const std::int64_t d : orders()) {
    auto a = this->lower(d);
    Tensor packed = Tensor::empty(this->ctx_, {ops::packed_size(d)}, dtype_of<TypeParam>);
    ops::pack_lower(this->ctx_, a.view(), packed);
    double expected = 0, trace = 99;
    float narrow = 99;
    for (std::int64_t i = 0; i < d; ++i) expected += static_cast<double>(*a.at(i, i));
    ops::packed_trace(this->ctx_, packed, d, view_of(&trace, {1}));
    ops::packed_trace(this->ctx_, packed, d, view_of(&narrow, {1}));
    EXPECT_EQ(trace, expected);  // The same additions in the same order.
    EXPECT_EQ(narrow, static_cast<float>(expected));
  }
}

TYPED_TEST(Triangle, RefusesMismatches) {
  Context& ctx = this->ctx_;
  const DType dtype = dtype_of<TypeParam>;
  const DType other = dtype == DType::f64 ? DType::f32 : DType::f64;
  Tensor square = Tensor::zeros(ctx, {4, 4}, dtype), wide = Tensor::zeros(ctx, {4, 5}, dtype);
  Tensor packed = Tensor::zeros(ctx, {10}, dtype), small = Tensor::zeros(ctx, {9}, dtype);
  Tensor foreign = Tensor::zeros(ctx, {10}, other), out = Tensor::zeros(ctx, {1}, dtype);
  Tensor gaps = Tensor::zeros(ctx, {10, 2}, dtype);
  const TensorView strided(gaps.view().raw(), dtype, {10}, Strides{2}, Device::cpu());
  EXPECT_THROW(ops::pack_lower(ctx, wide, packed), InvalidArgument);
  EXPECT_THROW(ops::pack_lower(ctx, square, small), InvalidArgument);
  EXPECT_THROW(ops::pack_lower(ctx, square, foreign), InvalidArgument);
  EXPECT_THROW(ops::pack_lower(ctx, square, strided), InvalidArgument);
  EXPECT_THROW(ops::pack_lower(ctx, square.view().transposed(), packed), InvalidArgument);
  EXPECT_THROW(ops::pack_lower(ctx, square, packed, packed), InvalidArgument);
  EXPECT_THROW(ops::unpack_lower(ctx, small, square, ops::Upper::untouched), InvalidArgument);
  EXPECT_THROW(ops::unpack_lower(ctx, foreign, square, ops::Upper::untouched), InvalidArgument);
  EXPECT_THROW(ops::packed_trace(ctx, packed, 3, out), InvalidArgument);
  EXPECT_THROW(ops::packed_trace(ctx, packed, -5, out), InvalidArgument);
}

}  // namespace
}  // namespace dkfac
