#include "comm/collective/cuda/collective_functors.h"

#include <limits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "comm/collective/vote.h"

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

TEST(CollectiveFunctors, RaiseTheFlagsOfABallotAndLowerNone) {
  Context ctx;
  for (const float gradient : {0.0F, 2.0F})
    for (const float statistic : {0.0F, 1.0F}) {
      Ballot ballot;
      ballot.gradient_count = view_of(&gradient, {1});
      ballot.statistic_count = view_of(&statistic, {1});
      std::vector<double> values(static_cast<std::size_t>(kBallotElements));
      encode_ballot(ballot, 0, values);
      add_counts(ctx, ballot, view_of(values.data(), {kBallotElements}));
      const Outcome outcome = count_ballots(values, 1);
      EXPECT_EQ(outcome.result.nonfinite_gradient, gradient > 0 ? 1 : 0);
      EXPECT_EQ(outcome.result.nonfinite_statistic, statistic > 0 ? 1 : 0);
      EXPECT_EQ(outcome.result.may_update(), gradient + statistic == 0);
      ballot.nonfinite_gradient = ballot.nonfinite_statistic = true;
      encode_ballot(ballot, 0, values);
      add_counts(ctx, ballot, view_of(values.data(), {kBallotElements}));
      EXPECT_EQ(count_ballots(values, 1).result.nonfinite_gradient, 1);
      EXPECT_EQ(count_ballots(values, 1).result.nonfinite_statistic, 1);
    }
}

}  // namespace
}  // namespace dkfac::comm
