#include "comm/collective/cuda/collective_functors.h"

#include <limits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "comm/collective/flag_message.h"

namespace dkfac::comm {
namespace {

TEST(CollectiveFunctors, CountPartsThatAreTooLargeForTheirWire) {
  for (const auto& [largest, past] : {std::pair(0.0F, false),
                                      {8.0F, false},
                                      {8.5F, true},
                                      {std::numeric_limits<float>::infinity(), true},
                                      {std::numeric_limits<float>::quiet_NaN(), true}}) {
    float count = 3;
    CountPast{4, 32, &largest, &count}(0);
    EXPECT_EQ(count, past ? 4 : 3) << largest;
  }
}

TEST(CollectiveFunctors, RaiseTheFlagsOfAMessageAndLowerNone) {
  Context ctx;
  for (const float gradient : {0.0F, 2.0F})
    for (const float statistic : {0.0F, 1.0F}) {
      FlagMessage message;
      message.gradient_count = view_of(&gradient, {1});
      message.statistic_count = view_of(&statistic, {1});
      std::vector<double> values(static_cast<std::size_t>(kFlagElements));
      encode_flags(message, 0, values);
      add_counts(ctx, message, view_of(values.data(), {kFlagElements}));
      const AgreedFlags agreed = decode_flags(values, 1);
      EXPECT_EQ(agreed.flags.nonfinite_gradient, gradient > 0 ? 1 : 0);
      EXPECT_EQ(agreed.flags.nonfinite_statistic, statistic > 0 ? 1 : 0);
      EXPECT_EQ(agreed.flags.may_update(), gradient + statistic == 0);
      message.nonfinite_gradient = message.nonfinite_statistic = true;
      encode_flags(message, 0, values);
      add_counts(ctx, message, view_of(values.data(), {kFlagElements}));
      EXPECT_EQ(decode_flags(values, 1).flags.nonfinite_gradient, 1);
      EXPECT_EQ(decode_flags(values, 1).flags.nonfinite_statistic, 1);
    }
}

}  // namespace
}  // namespace dkfac::comm
