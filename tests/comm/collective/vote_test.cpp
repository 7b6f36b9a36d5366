#include "comm/collective/vote.h"

#include <array>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"

namespace dkfac::comm {
namespace {

/// Sums of the ranks' ballots, as an f32 exchange would form them.
std::vector<double> sum_of(const std::vector<Ballot>& ballots) {
  std::vector<float> sums(kBallotElements, 0);
  for (std::size_t rank = 0; rank < ballots.size(); ++rank) {
    std::array<double, kBallotElements> one{};
    encode_ballot(ballots[rank], static_cast<int>(rank), one);
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += static_cast<float>(one[i]);
  }
  return {sums.begin(), sums.end()};
}

Outcome count(const std::vector<Ballot>& ballots) {
  return count_ballots(sum_of(ballots), static_cast<int>(ballots.size()));
}

TEST(FlagMessage, PassesWhenNobodyObjects) {
  const Outcome outcome = count(std::vector<Ballot>(5));
  EXPECT_TRUE(outcome.result.may_update());
  EXPECT_TRUE(outcome.ranks_agree);
  EXPECT_EQ(outcome.failed_statistic, -1);
}

TEST(FlagMessage, TellsOfALayerWithoutAnInverseOnAnyRank) {
  std::vector<Ballot> ballots(3);
  EXPECT_FALSE(count(ballots).lacks_inverse);
  ballots[2].lacks_inverse = true;
  EXPECT_TRUE(count(ballots).lacks_inverse);
  EXPECT_TRUE(count(ballots).result.may_update());
  EXPECT_TRUE(count(ballots).ranks_agree);
}

TEST(FlagMessage, CountsEachFlagByRanks) {
  std::vector<Ballot> ballots(4);
  ballots[0].caller.loss_nonfinite = true;
  ballots[1].caller.data_error = ballots[2].caller.data_error = true;
  ballots[3].caller.stop = true;
  ballots[1].nonfinite_gradient = ballots[0].nonfinite_gradient = ballots[3].nonfinite_gradient =
      true;
  ballots[2].nonfinite_statistic = true;
  const StepAgreement result = count(ballots).result;
  EXPECT_EQ(result.nonfinite_loss, 1);
  EXPECT_EQ(result.data_error, 2);
  EXPECT_EQ(result.stop, 1);
  EXPECT_EQ(result.nonfinite_gradient, 3);
  EXPECT_EQ(result.nonfinite_statistic, 1);
  EXPECT_EQ(result.numeric_failure, 0);
  EXPECT_FALSE(result.may_update());
}

TEST(FlagMessage, StopDoesNotHoldAnUpdateBack) {
  std::vector<Ballot> ballots(2);
  ballots[1].caller.stop = true;
  EXPECT_TRUE(count(ballots).result.may_update());
}

TEST(FlagMessage, TellsWhetherNoRankHasSamples) {
  std::vector<Ballot> ballots(3);
  EXPECT_FALSE(count(ballots).no_samples);
  ballots[0].no_samples = ballots[2].no_samples = true;
  EXPECT_FALSE(count(ballots).no_samples);
  ballots[1].no_samples = true;
  EXPECT_TRUE(count(ballots).no_samples);
}

TEST(FlagMessage, NamesTheRankAndLayerOfASingleFailure) {
  std::vector<Ballot> ballots(3);
  ballots[2].failed_statistic = 7;
  Outcome outcome = count(ballots);
  EXPECT_EQ(outcome.result.numeric_failure, 1);
  EXPECT_EQ(outcome.failed_rank, 2);
  EXPECT_EQ(outcome.failed_statistic, 7);
  ballots[1].failed_statistic = 3;
  outcome = count(ballots);
  EXPECT_EQ(outcome.result.numeric_failure, 2);
  EXPECT_EQ(outcome.failed_rank, -1);  // sums of two cannot be told apart
}

TEST(FlagMessage, SeesAnyDifferenceBetweenHashes) {
  for (const std::vector<std::uint64_t>& hashes :
       std::vector<std::vector<std::uint64_t>>{{1, 2, 3},
                                               {0, 0, 1},
                                               {5, 5},
                                               {0xFFFFFFFFFFFFFFFF, 0xFFFFFFFFFFFFFFFE},
                                               {9},
                                               {0, 2, 4},
                                               {0x1000000000000000, 0},
                                               {7, 7, 7, 7}}) {
    std::vector<Ballot> ballots(hashes.size());
    bool equal = true;
    for (std::size_t r = 0; r < hashes.size(); ++r) {
      ballots[r].hash = hashes[r];
      equal = equal && hashes[r] == hashes[0];
    }
    EXPECT_EQ(count(ballots).ranks_agree, equal) << hashes[0] << ", " << hashes.back();
  }
}

TEST(FlagMessage, TheMeanAloneWouldMissAHashThatIsTheMean) {
  // Negative control for the squares: 1 + 2 + 3 == 3 * 2, so rank 1 sees its own digit as the mean.
  std::vector<Ballot> ballots(3);
  for (std::size_t r = 0; r < 3; ++r) ballots[r].hash = r + 1;
  EXPECT_EQ(sum_of(ballots)[8], 3.0 * 2);
  EXPECT_FALSE(count(ballots).ranks_agree);
}

TEST(FlagMessage, StaysExactInSinglePrecisionAtTheLargestWorld) {
  std::vector<Ballot> ballots(kMaxBallots);
  for (Ballot& ballot : ballots) ballot.hash = 0xFFFFFFFFFFFFFFFF;
  EXPECT_TRUE(count(ballots).ranks_agree);
  ballots.back().hash = 0xFFFFFFFFFFFFFFEF;
  EXPECT_FALSE(count(ballots).ranks_agree);
}

TEST(FlagMessage, RefusesABallotOfAnotherSize) {
  std::array<double, 3> wrong{};
  EXPECT_THROW(encode_ballot({}, 0, wrong), InvalidArgument);
  EXPECT_THROW((void)count_ballots(wrong, 1), InvalidArgument);
}

TEST(MixHash, DependsOnTheHashAndTheValue) {
  EXPECT_EQ(mix_hash(1, 0.1), mix_hash(1, 0.1));
  EXPECT_NE(mix_hash(1, 0.1), mix_hash(2, 0.1));
  EXPECT_NE(mix_hash(1, 0.1), mix_hash(1, 0.1 + 1e-17 * 2));
}

}  // namespace
}  // namespace dkfac::comm
