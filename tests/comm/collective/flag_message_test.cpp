#include "comm/collective/flag_message.h"

#include <array>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"

namespace dkfac::comm {
namespace {

/// Sums of the ranks' messages in f32, as a BucketedReduce computes them.
std::vector<double> sum_of(const std::vector<FlagMessage>& messages) {
  std::vector<float> sums(kFlagElements, 0);
  for (std::size_t rank = 0; rank < messages.size(); ++rank) {
    std::array<double, kFlagElements> one{};
    encode_flags(messages[rank], static_cast<int>(rank), one);
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += static_cast<float>(one[i]);
  }
  return {sums.begin(), sums.end()};
}

AgreedFlags count(const std::vector<FlagMessage>& messages) {
  return decode_flags(sum_of(messages), static_cast<int>(messages.size()));
}

TEST(FlagMessage, PassesWithoutAnyFlag) {
  const AgreedFlags agreed = count(std::vector<FlagMessage>(5));
  EXPECT_TRUE(agreed.flags.may_update());
  EXPECT_TRUE(agreed.ranks_agree);
  EXPECT_EQ(agreed.failed_statistic, -1);
}

TEST(FlagMessage, TellsOfALayerWithoutAnInverseOnAnyRank) {
  std::vector<FlagMessage> messages(3);
  EXPECT_FALSE(count(messages).lacks_inverse);
  messages[2].lacks_inverse = true;
  EXPECT_TRUE(count(messages).lacks_inverse);
  EXPECT_TRUE(count(messages).flags.may_update());
  EXPECT_TRUE(count(messages).ranks_agree);
}

TEST(FlagMessage, CountsEachFlagByRanks) {
  std::vector<FlagMessage> messages(4);
  messages[0].caller.loss_nonfinite = true;
  messages[1].caller.data_error = messages[2].caller.data_error = true;
  messages[3].caller.stop = true;
  messages[1].nonfinite_gradient = messages[0].nonfinite_gradient = messages[3].nonfinite_gradient =
      true;
  messages[2].nonfinite_statistic = true;
  const StepAgreement result = count(messages).flags;
  EXPECT_EQ(result.nonfinite_loss, 1);
  EXPECT_EQ(result.data_error, 2);
  EXPECT_EQ(result.stop, 1);
  EXPECT_EQ(result.nonfinite_gradient, 3);
  EXPECT_EQ(result.nonfinite_statistic, 1);
  EXPECT_EQ(result.numeric_failure, 0);
  EXPECT_FALSE(result.may_update());
}

TEST(FlagMessage, StopDoesNotHoldAnUpdateBack) {
  std::vector<FlagMessage> messages(2);
  messages[1].caller.stop = true;
  EXPECT_TRUE(count(messages).flags.may_update());
}

TEST(FlagMessage, TellsWhetherNoRankHasSamples) {
  std::vector<FlagMessage> messages(3);
  EXPECT_EQ(count(messages).without_samples, 0);
  messages[0].no_samples = messages[2].no_samples = true;
  EXPECT_EQ(count(messages).without_samples, 2);
  messages[1].no_samples = true;
  EXPECT_EQ(count(messages).without_samples, 3);
}

TEST(FlagMessage, NamesTheRankAndLayerOfASingleFailure) {
  std::vector<FlagMessage> messages(3);
  messages[2].failed_statistic = 7;
  AgreedFlags agreed = count(messages);
  EXPECT_EQ(agreed.flags.numeric_failure, 1);
  EXPECT_EQ(agreed.failed_rank, 2);
  EXPECT_EQ(agreed.failed_statistic, 7);
  messages[1].failed_statistic = 3;
  agreed = count(messages);
  EXPECT_EQ(agreed.flags.numeric_failure, 2);
  EXPECT_EQ(agreed.failed_rank, -1);  // sums of two ranks cannot be separated
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
    std::vector<FlagMessage> messages(hashes.size());
    bool equal = true;
    for (std::size_t r = 0; r < hashes.size(); ++r) {
      messages[r].hash = hashes[r];
      equal = equal && hashes[r] == hashes[0];
    }
    EXPECT_EQ(count(messages).ranks_agree, equal) << hashes[0] << ", " << hashes.back();
  }
}

TEST(FlagMessage, TheMeanAloneWouldMissAHashThatIsTheMean) {
  // Negative control for the squares: 1 + 2 + 3 == 3 * 2, so rank 1 sees its own digit as the mean.
  std::vector<FlagMessage> messages(3);
  for (std::size_t r = 0; r < 3; ++r) messages[r].hash = r + 1;
  EXPECT_EQ(sum_of(messages)[8], 3.0 * 2);
  EXPECT_FALSE(count(messages).ranks_agree);
}

TEST(FlagMessage, StaysExactInSinglePrecisionAtTheLargestWorld) {
  std::vector<FlagMessage> messages(kMaxFlagRanks);
  for (FlagMessage& message : messages) message.hash = 0xFFFFFFFFFFFFFFFF;
  EXPECT_TRUE(count(messages).ranks_agree);
  messages.back().hash = 0xFFFFFFFFFFFFFFEF;
  EXPECT_FALSE(count(messages).ranks_agree);
}

TEST(FlagMessage, RefusesAMessageOfAnotherSize) {
  std::array<double, 3> wrong{};
  EXPECT_THROW(encode_flags({}, 0, wrong), InvalidArgument);
  EXPECT_THROW((void)decode_flags(wrong, 1), InvalidArgument);
}

TEST(MixHash, DependsOnTheHashAndTheValue) {
  EXPECT_EQ(mix_hash(1, 0.1), mix_hash(1, 0.1));
  EXPECT_NE(mix_hash(1, 0.1), mix_hash(2, 0.1));
  EXPECT_NE(mix_hash(1, 0.1), mix_hash(1, 0.1 + 1e-17 * 2));
}

}  // namespace
}  // namespace dkfac::comm
