#include "kfac/schedule/refresh_decision.h"

#include <gtest/gtest.h>

namespace dkfac::kfac {
namespace {

TEST(RefreshDecisionDrift, IsRoundedOnceAndStaysFinite) {
  for (const double exact : {-1.0, 0.0, 0.125}) EXPECT_EQ(rounded_drift(exact), exact);
  const double once = rounded_drift(0.1);
  EXPECT_NE(once, 0.1);
  EXPECT_NEAR(once, 0.1, 0.1 * 0x1p-11);  // half a unit in the last place of f16
  EXPECT_EQ(rounded_drift(once), once);
  EXPECT_EQ(rounded_drift(1e9), static_cast<double>(kMaxF16));
}

}  // namespace
}  // namespace dkfac::kfac
