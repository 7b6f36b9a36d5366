// Batches that are too small for a BatchNorm on some rank are refused before the first step.

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "app/tiny_run.h"

namespace dkfac::app {
namespace {

/// Steps of one epoch over `samples` images in batches of 16, the last one kept; what the run says
/// when it is refused in its setup.
struct Answer {
  std::int64_t steps = 0;
  std::string refused;
};

Answer run(int samples, int ranks, const std::vector<std::string>& more = {}) {
  std::vector<std::string> keys{"run.epochs=1", "train.global_batch=16", "train.drop_last=false",
                                "data.synthetic_train=" + std::to_string(samples)};
  keys.insert(keys.end(), more.begin(), more.end());
  try {
    return {tiny::run(tiny::config("sgd", keys), ranks, {}).result.steps, {}};
  } catch (const RunError& error) {
    EXPECT_EQ(error.failure.code, ExitCode::usage);
    EXPECT_EQ(error.failure.position.activity, "setup");
    return {0, error.what()};
  }
}

// The BatchNorms of LeNet's last layers see one value per sample.
TEST(SmallBatch, NeedsTwoSamplesPerGroupOnEveryRank) {
  EXPECT_EQ(run(34, 1).steps, 3);
  EXPECT_NE(run(33, 1).refused.find("'bn3'"), std::string::npos);
  EXPECT_EQ(run(36, 2).steps, 3);
  EXPECT_NE(run(35, 2).refused.find("batch of 3 samples"), std::string::npos);
  EXPECT_EQ(run(40, 2, {"model.batch_norm_groups=4"}).steps, 3);
  EXPECT_FALSE(run(36, 2, {"model.batch_norm_groups=4"}).refused.empty());
}

TEST(SmallBatch, IsCutIntoMicroBatches) {
  EXPECT_EQ(run(36, 1, {"train.micro_batches=2"}).steps, 3);
  EXPECT_NE(run(35, 1, {"train.micro_batches=2"}).refused.find("2 micro-batches"),
            std::string::npos);
}

TEST(SmallBatch, OfOneSampleWillDoWithoutSuchABatchNorm) {
  EXPECT_EQ(run(33, 1, {"model.name=mlp"}).steps, 3);
  EXPECT_EQ(run(33, 1, {"model.name=resnet20", "model.width=2"}).steps, 3);
  EXPECT_EQ(run(33, 1, {"train.drop_last=true"}).steps, 2);
}

}  // namespace
}  // namespace dkfac::app
