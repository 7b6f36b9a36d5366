// BatchNorm groups that extend over ranks, on a device.

#include <gtest/gtest.h>

#include "nn/cuda/device_models.h"

namespace dkfac::testing {
namespace {

/// Sums in another order over ten steps, and inverses at damping 0.3; c*n*eps as of
/// kEqualityTolerance (nn/distributed_training.h).
constexpr double kTolerance = 1e-10;

Recipe recipe(Method method, std::int64_t groups) {
  return {.model = small_model("resnet20", DType::f64),
          .method = method,
          .steps = steps_in_time(4),
          .capture = true,
          .groups = groups};
}

TEST(SharedBatchNormOnDevice, TrainsAsOneRankOfTheHostDoes) {
  for (const Method method : {Method::sgd, Method::kfac}) {
    const TrainedModel one = train_model(recipe(method, 1), Device::cpu());
    for (const int ranks : {2, 4}) {
      const TrainedModel many = train_model(recipe(method, 1), Device::cuda(), ranks);
      EXPECT_TRUE(near(many.weights, one.weights, kTolerance));
      EXPECT_TRUE(near(many.buffers, one.buffers, kTolerance));
      EXPECT_TRUE(near(many.losses, one.losses, kTolerance));
    }
  }
  // Control: a group for each rank.
  EXPECT_FALSE(near(train_model(recipe(Method::sgd, 2), Device::cuda(), 2).weights,
                    train_model(recipe(Method::sgd, 1), Device::cpu()).weights, 1e-3));
}

/// Sums that convolutions leave are those of one rank, too, and are shared like others.
TEST(SharedBatchNormOnDevice, TrainsInMixedPrecisionAndWithFusedSums) {
  std::vector<std::vector<double>> weights;
  for (const bool fused : {false, true}) {
    Recipe mixed = recipe(Method::sgd, 1);
    mixed.model = small_model("resnet20", DType::f32, DType::f16);
    mixed.model.fused_moments = mixed.model.fused_backward =
        fused ? nn::FusionUse::on : nn::FusionUse::off;
    const TrainedModel one = train_model(mixed, Device::cuda());
    // Values of 11 bits; a loss is a mean over what 19 layers have moved in all directions.
    EXPECT_TRUE(near(train_model(mixed, Device::cuda(), 2).losses, one.losses, 4.0 / 1024));
    weights.push_back(one.weights);
  }
  EXPECT_TRUE(!is_emulated() || weights[0] != weights[1]) << "control: nothing was fused";
}

TEST(SharedBatchNormOnDevice, RecordsNoPass) {
  comm::run_ranks(2, [](const std::shared_ptr<comm::Communicator>& comm) {
    for (const std::int64_t groups : {1, 2}) {
      ModelTraining training(recipe(Method::sgd, groups), Device::cuda(), comm);
      for (int step = 0; step < 3; ++step) (void)training.step(0);
      EXPECT_EQ(training.passes().counts().captured, groups == 1 ? 0 : 1);
      EXPECT_EQ(training.passes().counts().refused, 0);
    }
  });
}

}  // namespace
}  // namespace dkfac::testing
