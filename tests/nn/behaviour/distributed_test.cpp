#include <gtest/gtest.h>

#include "dkfac/comm/in_process.h"

#include "nn/distributed_training.h"

namespace dkfac::testing {
namespace {

const Trained& one_rank() {
  static const Trained result = train_kfac(comm::make_self(), false);
  return result;
}

struct Case {
  int ranks;
  bool overlap;
};
class DistributedKfac : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Ranks, DistributedKfac,
                         ::testing::Values(Case{1, true}, Case{2, true}, Case{2, false},
                                           Case{3, true}, Case{3, false}, Case{4, true},
                                           Case{4, false}),
                         [](const auto& param) {
                           return std::to_string(param.param.ranks) +
                                  (param.param.overlap ? "WithOverlap" : "WithoutOverlap");
                         });

TEST_P(DistributedKfac, GivesTheWeightsOfOneRankAndTheSameBitsOnAll) {
  const Trained& expected = one_rank();
  comm::run_ranks(GetParam().ranks, [&](const std::shared_ptr<comm::Communicator>& comm) {
    expect_same_training(*comm, train_kfac(comm, GetParam().overlap), expected);
  });
}

TEST(DistributedTraining, OneRankLowersTheLossAndMovesEveryLayer) {
  const Trained& result = one_rank();
  EXPECT_LT(result.last_loss, 0.8 * result.first_loss);
  Context ctx;
  EXPECT_FALSE(
      near(values(ctx, distributed_model(ctx, kGroups)->parameters()), result.weights, 1e-3));
}

TEST(DistributedTraining, DrawsTheSameLabelsForTheFisherOnAnyNumberOfRanks) {
  const Trained expected = train_kfac(comm::make_self(), false, {.sampled_labels = true});
  EXPECT_FALSE(near(expected.weights, one_rank().weights, 1e-3)) << "another Fisher";
  for (const int ranks : {2, 3, 4}) {
    comm::run_ranks(ranks, [&](const std::shared_ptr<comm::Communicator>& comm) {
      expect_same_training(*comm, train_kfac(comm, true, {.sampled_labels = true}), expected);
    });
  }
}

TEST(DistributedTraining, FindsTheSameRatesByTheQuadraticModelOnAnyNumberOfRanks) {
  const Passes passes{.sampled_labels = true, .quadratic = true};
  const Trained expected = train_kfac(comm::make_self(), false, passes);
  EXPECT_LT(expected.last_loss, 0.5 * expected.first_loss);
  for (const int ranks : {2, 3, 4}) {
    comm::run_ranks(ranks, [&](const std::shared_ptr<comm::Communicator>& comm) {
      expect_same_training(*comm, train_kfac(comm, true, passes), expected);
    });
  }
}

TEST(DistributedTraining, AddsMicroBatchesUpToTheBatch) {
  // Only running statistics distinguish the two: they move with every pass.
  const auto expect_same_weights = [](const Trained& actual, const Trained& expected) {
    EXPECT_TRUE(near(actual.weights, expected.weights, kEqualityTolerance));
    EXPECT_FALSE(near(actual.buffers, expected.buffers, 1e-3));
  };
  const Trained sampled = train_kfac(comm::make_self(), false, {.sampled_labels = true});
  for (const std::int64_t parts : {2, 3, 4}) {
    expect_same_weights(train_kfac(comm::make_self(), true, {.micro_batches = parts}), one_rank());
    expect_same_weights(
        train_kfac(comm::make_self(), true, {.sampled_labels = true, .micro_batches = parts}),
        sampled);
  }
  comm::run_ranks(3, [&](const std::shared_ptr<comm::Communicator>& comm) {
    expect_same_weights(train_kfac(comm, true, {.micro_batches = 2}), one_rank());
  });
}

TEST(DistributedTraining, NoticesOtherGhostGroups) {
  // The negative control: statistics over other samples are far beyond the tolerance.
  Context ctx;
  const Tensor x = random_tensor(ctx, Shape{12, 6, 6, 2}, DType::f64, 1);
  const auto logits = [&](std::int64_t groups) {
    return values(ctx, distributed_model(ctx, groups)->forward(ctx, x, nn::Mode::train));
  };
  EXPECT_TRUE(near(logits(6), logits(6), kEqualityTolerance));
  EXPECT_FALSE(near(logits(6), logits(3), 1e-3));
}

TEST(DistributedTraining, SgdGivesTheWeightsOfOneRankToo) {
  const auto train_sgd = [](const std::shared_ptr<comm::Communicator>& comm) {
    optim::SgdOptions options;
    options.communication.bucket_bytes = 512;
    return train(comm, *optim::make_sgd(comm, options));
  };
  const Trained expected = train_sgd(comm::make_self());
  for (const int ranks : {2, 3, 4}) {
    comm::run_ranks(ranks, [&](const std::shared_ptr<comm::Communicator>& comm) {
      expect_same_training(*comm, train_sgd(comm), expected);
    });
  }
}

}  // namespace
}  // namespace dkfac::testing
