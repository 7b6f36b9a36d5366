#include "comm/collective/wire.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

namespace dkfac::comm {
namespace {

TEST(ExponentOf, IsTheLeastPowerOfTwoAbove) {
  EXPECT_EQ(exponent_of(1), 1);
  EXPECT_EQ(exponent_of(-0.75), 0);
  EXPECT_EQ(exponent_of(0.5), 0);
  EXPECT_EQ(exponent_of(1023), 10);
  EXPECT_EQ(exponent_of(1024), 11);
  EXPECT_EQ(exponent_of(std::numeric_limits<double>::denorm_min()), -1073);
  EXPECT_EQ(exponent_of(0), kNoExponent);
  EXPECT_EQ(exponent_of(std::numeric_limits<double>::infinity()), kNoExponent);
  EXPECT_EQ(exponent_of(std::nan("")), kNoExponent);
}

TEST(WireScale, IsOneWhereTheWireHasTheRangeOfF32) {
  EXPECT_EQ(wire_scale(DType::bf16, 40, 8), 1);
  EXPECT_EQ(wire_scale(DType::f32, -40, 8), 1);
}

TEST(WireScale, LeavesRoomForTheSumAndForGrowth) {
  // Parts below 2^e, sixteen times as large in the next step, from 6 (at most 8) ranks: 2^15.
  for (const int exponent : {-30, -3, 0, 7}) {
    const double scaled = wire_scale(DType::f16, exponent, 6) * std::ldexp(1.0, exponent);
    EXPECT_EQ(scaled * 16 * 8, 32768) << exponent;
  }
}

TEST(WireLimit, KeepsEverySumFinite) {
  EXPECT_EQ(wire_limit(DType::f16, 1), 32768);
  EXPECT_EQ(wire_limit(DType::f16, 5), 4096);
  EXPECT_EQ(wire_limit(DType::bf16, 2), std::ldexp(1.0, 126));
}

}  // namespace
}  // namespace dkfac::comm
