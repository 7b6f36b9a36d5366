// Plans of phases: steps, images and operations.

#include "app/training/phases.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace dkfac::app {
namespace {

/// Two epochs over `data`, to which the plan refers, at 10 operations an image.
std::vector<PhasePlan> two_epochs(const data::DataSplits& data, std::vector<std::string> keys) {
  keys.insert(keys.end(), {"run.epochs=2", "optimizer.type=sgd", "lr.schedule=constant"});
  std::vector<PhasePlan> plan = plan_phases(parse_config("", keys, "test"), one_for_all(data), 1);
  for (PhasePlan& p : plan) p.image_flops = 10;
  return plan;
}

TEST(PhasePlans, CountTheImagesOfASmallerLastBatch) {
  data::DataSplits data;
  data.train = data::synthetic_images(100, {4, 4, 1}, 2, 1);
  data.test = data.train;
  const auto plan = two_epochs(data, {"train.global_batch=64", "train.drop_last=false"});
  EXPECT_EQ(plan.front().steps(), 4);
  using Counts = std::vector<std::pair<std::int64_t, std::int64_t>>;
  for (const auto& [steps, images] : Counts{{0, 0}, {1, 64}, {2, 100}, {3, 164}, {4, 200}}) {
    EXPECT_EQ(plan.front().images(steps), images);
    EXPECT_EQ(work_of(plan, steps), 10 * static_cast<double>(images));
  }
  EXPECT_NE(phase_table(plan, 1).find(" 200  "), std::string::npos) << phase_table(plan, 1);
  const auto large = two_epochs(data, {"train.global_batch=1000", "train.drop_last=false"});
  EXPECT_EQ(large.front().images(large.front().steps()), 200);
  const auto whole = two_epochs(data, {"train.global_batch=64"});
  EXPECT_EQ(whole.front().images(whole.front().steps()), 128);
}

}  // namespace
}  // namespace dkfac::app
