#include "dkfac/core/half.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/random.h"

#include "support/not_finite.h"

namespace dkfac {
namespace {

/// A 16-bit format by its definition, in exact double arithmetic and without bit tricks.
struct Format {
  int exponent_bits, mantissa_bits;

  [[nodiscard]] int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  /// Value of non-negative finite `bits`; of the pattern past the largest one what would be next.
  [[nodiscard]] double value(int bits) const {
    const int exponent = bits >> mantissa_bits;
    const int mantissa = bits & ((1 << mantissa_bits) - 1);
    if (exponent == 0) return std::ldexp(mantissa, 1 - bias() - mantissa_bits);
    return std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias() - mantissa_bits);
  }
  [[nodiscard]] int infinity() const { return ((1 << exponent_bits) - 1) << mantissa_bits; }

  /// Nearest of the two neighbours, found by bisection; a tie goes to the even pattern. "Next past
  /// the largest" stands for infinity, as in IEEE 754.
  [[nodiscard]] int round(double x) const {
    const int sign = std::signbit(x) ? 0x8000 : 0;
    const double magnitude = std::abs(x);
    int below = 0, above = infinity();
    if (magnitude >= value(above)) return sign | above;
    while (above - below > 1) {
      const int middle = (below + above) / 2;
      (value(middle) <= magnitude ? below : above) = middle;
    }
    const double down = magnitude - value(below), up = value(above) - magnitude;
    const bool take_above = up < down || (up == down && above % 2 == 0);
    return sign | (take_above ? above : below);
  }
};

constexpr Format kF16{5, 10};
constexpr Format kBf16{8, 7};

/// Magnitudes around everything that can go wrong: each power of two, halfway cases and their
/// neighbours, subnormals of both formats, and random bit patterns.
std::vector<double> interesting(const Format& format) {
  std::vector<double> out = {0.0, kInf, std::numeric_limits<double>::max(),
                             std::numeric_limits<double>::denorm_min(),
                             std::numeric_limits<float>::denorm_min()};
  Random random(7, 1);
  for (int i = 0; i < 4000; ++i) {
    const int bits = static_cast<int>(random.below(static_cast<std::uint64_t>(format.infinity())));
    const double low = format.value(bits), high = format.value(bits + 1);
    const double half = low + (high - low) / 2;
    for (const double x : {low, half}) {
      out.push_back(x);
      out.push_back(std::nextafter(x, kInf));
      out.push_back(std::nextafter(x, 0.0));
      out.push_back(std::nextafterf(static_cast<float>(x), INFINITY));
      out.push_back(std::nextafterf(static_cast<float>(x), 0.0F));
    }
  }
  for (int i = -1080; i < 1024; ++i) out.push_back(std::ldexp(1.0 + random.uniform(), i));
  for (int i = 0; i < 40000; ++i) {
    const float x = std::bit_cast<float>(random.next_u32());
    if (!std::isnan(x)) out.push_back(x);
  }
  return out;
}

TEST(Half, WidensEveryPatternExactly) {
  for (int bits = 0; bits < 0x10000; ++bits) {
    const auto pattern = static_cast<std::uint16_t>(bits);
    for (const auto& [format, x] :
         {std::pair{kF16, to_float(f16{pattern})}, std::pair{kBf16, to_float(bf16{pattern})}}) {
      const int magnitude = bits & 0x7FFF;
      if (magnitude > format.infinity()) {
        ASSERT_TRUE(std::isnan(x)) << bits;
      } else {
        const double expected = magnitude == format.infinity() ? kInf : format.value(magnitude);
        ASSERT_EQ(std::abs(x), expected) << bits;
      }
      ASSERT_EQ(std::signbit(x), bits >= 0x8000) << bits;
    }
  }
}

TEST(Half, RoundTripsEveryPattern) {
  for (int bits = 0; bits < 0x10000; ++bits) {
    const auto pattern = static_cast<std::uint16_t>(bits);
    // A NaN comes back quiet, with its sign and payload.
    const bool f16_nan = (bits & 0x7FFF) > kF16.infinity();
    const bool bf16_nan = (bits & 0x7FFF) > kBf16.infinity();
    const float wide = to_float(f16{pattern});
    ASSERT_EQ(to_f16(wide).bits, f16_nan ? (bits | 0x0200) : bits);
    ASSERT_EQ(to_f16(static_cast<double>(wide)).bits, f16_nan ? (bits | 0x0200) : bits);
    const float wide_b = to_float(bf16{pattern});
    ASSERT_EQ(to_bf16(wide_b).bits, bf16_nan ? (bits | 0x0040) : bits);
    ASSERT_EQ(to_bf16(static_cast<double>(wide_b)).bits, bf16_nan ? (bits | 0x0040) : bits);
  }
}

TEST(Half, RoundsDoublesToTheNearestOfBothNeighbours) {
  for (const double magnitude : interesting(kF16)) {
    for (const double x : {magnitude, -magnitude}) ASSERT_EQ(to_f16(x).bits, kF16.round(x)) << x;
  }
  for (const double magnitude : interesting(kBf16)) {
    for (const double x : {magnitude, -magnitude}) ASSERT_EQ(to_bf16(x).bits, kBf16.round(x)) << x;
  }
}

TEST(Half, RoundsFloatsToTheNearestOfBothNeighbours) {
  const auto as_float = [](double x) {
    return x > std::numeric_limits<float>::max() ? INFINITY : static_cast<float>(x);
  };
  for (const double magnitude : interesting(kF16)) {
    const float x = as_float(magnitude);
    ASSERT_EQ(to_f16(x).bits, kF16.round(x)) << x;
    ASSERT_EQ(to_f16(-x).bits, kF16.round(-x)) << -x;
  }
  for (const double magnitude : interesting(kBf16)) {
    const float x = as_float(magnitude);
    ASSERT_EQ(to_bf16(x).bits, kBf16.round(x)) << x;
    ASSERT_EQ(to_bf16(-x).bits, kBf16.round(-x)) << -x;
  }
}

TEST(Half, OverflowsToInfinityHalfwayPastTheLargestValue) {
  EXPECT_EQ(to_float(to_f16(65519.996F)), kMaxF16);
  EXPECT_TRUE(std::isinf(to_float(to_f16(65520.0F))));
  EXPECT_EQ(to_float(to_f16(std::nextafter(65520.0, 0.0))), kMaxF16);
  EXPECT_TRUE(std::isinf(to_float(to_bf16(std::numeric_limits<float>::max()))));
  EXPECT_TRUE(std::isinf(to_float(to_bf16(1e300))));
}

TEST(Half, KeepsNaNs) {
  // Payloads whose leading bits are 0 must not turn into infinity.
  for (const std::uint32_t bits : {0x7F800001U, 0xFF800001U, 0x7FC00000U, 0x7FFFFFFFU}) {
    const float x = std::bit_cast<float>(bits);
    EXPECT_TRUE(std::isnan(to_float(to_f16(x)))) << bits;
    EXPECT_TRUE(std::isnan(to_float(to_bf16(x)))) << bits;
  }
  for (const std::uint64_t bits : {0x7FF0000000000001U, 0xFFF0000000000001U}) {
    const double x = std::bit_cast<double>(bits);
    EXPECT_TRUE(std::isnan(to_float(to_f16(x)))) << bits;
    EXPECT_TRUE(std::isnan(to_float(to_bf16(x)))) << bits;
  }
}

TEST(Half, RoundsADoubleOnceWhereTheWayThroughFloatRoundsTwice) {
  // Just above halfway between 1 and the next f16: float drops the excess, the tie goes down.
  const double x = 1.0 + 0x1p-11 + 0x1p-40;
  EXPECT_EQ(to_f16(x).bits, 0x3C01);
  EXPECT_EQ(to_f16(static_cast<float>(x)).bits, 0x3C00);  // Negative control.
  const double y = 1.0 + 0x1p-8 + 0x1p-40;
  EXPECT_EQ(to_bf16(y).bits, 0x3F81);
  EXPECT_EQ(to_bf16(static_cast<float>(y)).bits, 0x3F80);
}

TEST(Half, OracleItselfKnowsTheStandardsExamples) {
  EXPECT_EQ(kF16.value(0x3C00), 1.0);
  EXPECT_EQ(kF16.value(0x7BFF), 65504.0);
  EXPECT_EQ(kF16.value(0x0001), 0x1p-24);
  EXPECT_EQ(kBf16.value(0x3F80), 1.0);
  EXPECT_EQ(kF16.round(1.0 + 0x1p-11), 0x3C00);      // Ties go to even: down here,
  EXPECT_EQ(kF16.round(1.0 + 3 * 0x1p-11), 0x3C02);  // up there.
}

}  // namespace
}  // namespace dkfac
