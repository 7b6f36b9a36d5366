#include "kfac/schedule/refresh_decision.h"

#include <array>

#include <gtest/gtest.h>

#include "dkfac/core/half.h"

#include "kfac/schedule/staleness.h"

namespace dkfac::kfac {
namespace {

RefreshDecision sent(const RefreshDecision& decision) {
  std::array<double, kNumbersPerDecision> numbers{};
  encode_decision(decision, numbers);
  // For any type of the data that they are sent with.
  for (double& x : numbers) {
    EXPECT_EQ(static_cast<double>(to_float(to_f16(x))), x);
    x = static_cast<double>(to_float(to_f16(x)));
  }
  return decode_decision(numbers);
}

TEST(RefreshDecisionNumbers, ArriveExactlyInSixteenBits) {
  for (const std::int64_t interval : {std::int64_t{1}, std::int64_t{2}, std::int64_t{1023},
                                      std::int64_t{1024}, std::int64_t{2049}, kMaxInterval}) {
    const RefreshDecision decision{interval, 0.125, -149};
    EXPECT_EQ(sent(decision), decision);
  }
  EXPECT_EQ(sent({kMaxInterval + 1, -1, comm::kNoExponent}),
            (RefreshDecision{kMaxInterval, -1, comm::kNoExponent}));
  EXPECT_EQ(sent({}), RefreshDecision{});
}

TEST(RefreshDecisionNumbers, RoundTheDriftOnceAndKeepItFinite) {
  const RefreshDecision once = sent({3, 0.1, 4});
  EXPECT_NE(once.drift, 0.1);
  EXPECT_NEAR(once.drift, 0.1, 0.1 * 0x1p-11);  // half a unit in the last place of f16
  EXPECT_EQ(sent(once), once);
  EXPECT_EQ(sent({3, 1e9, 4}).drift, static_cast<double>(kMaxF16));
}

}  // namespace
}  // namespace dkfac::kfac
