#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "nn/cuda/device_models.h"
#include "support/saved_state.h"

/// Networks with 16-bit activations and f32 master weights, and their loss scale.
namespace dkfac::testing {
namespace {

Recipe recipe_of(DType compute, Method method, bool record) {
  Recipe recipe{.model = small_model("resnet20", DType::f32, compute),
                .method = method,
                .steps = steps_in_time(6)};
  recipe.capture = record;
  recipe.statistics_every = record ? 3 : 1;
  return recipe;
}

/// Powers of two as loss scale with which no gradient overflows its type or loses bits to
/// underflow: those of f16 between 2^14 and 2^18 here.
struct Scales {
  DType compute;
  double first, second;
};
class LossScaleOnDevice : public ::testing::TestWithParam<Scales> {};

TEST_P(LossScaleOnDevice, LeavesEveryBitAlone) {
  const auto [compute, first, second] = GetParam();
  for (const Method method : {Method::sgd, Method::lars, Method::kfac}) {
    for (const bool record : {false, true}) {
      if (record && method == Method::lars) continue;  // As for SGD: nothing is recorded.
      Recipe recipe = recipe_of(compute, method, record);
      recipe.loss_scale = [scale = first](int) { return scale; };
      const TrainedModel one = train_model(recipe, Device::cuda());
      recipe.loss_scale = [scale = second](int) { return scale; };
      const TrainedModel other = train_model(recipe, Device::cuda());
      EXPECT_EQ(one.losses, other.losses);
      EXPECT_EQ(one.weights, other.weights);
      EXPECT_EQ(one.buffers, other.buffers);
    }
  }
}

std::string name_of_scales(const ::testing::TestParamInfo<Scales>& info) {
  return std::string(name_of(info.param.compute));
}
INSTANTIATE_TEST_SUITE_P(Types, LossScaleOnDevice,
                         ::testing::Values(Scales{DType::f32, 1, 0x1p20},
                                           Scales{DType::bf16, 1, 0x1p20},
                                           Scales{DType::f16, 0x1p15, 0x1p17}),
                         name_of_scales);

/// Control of the test before: where gradients underflow, the loss scale does change the bits.
TEST(ScaledLossOnDevice, KeepsGradientsFromUnderflow) {
  Recipe recipe = recipe_of(DType::f16, Method::sgd, false);
  const TrainedModel without = train_model(recipe, Device::cuda());
  recipe.loss_scale = [](int) { return 0x1p15; };
  EXPECT_NE(train_model(recipe, Device::cuda()).weights, without.weights);
}

/// Tensors of an optimizer: moments, averages, inverses.
SavedState tensors_of(optim::Optimizer& optimizer) {
  Saver saver;
  optimizer.visit_state(saver);
  std::erase_if(saver.state, [](const auto& entry) { return entry.second.shape.ndim() == 0; });
  return saver.state;
}

void expect_same_tensors(const SavedState& a, const SavedState& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, value] : a) EXPECT_EQ(value.bytes, b.at(name).bytes) << name;
}

/// A value that overflows f16 ends a step before it has changed anything but running statistics,
/// which belong to the forward pass. The step is counted, and later ones continue as if it had not
/// happened.
TEST(OverflowOnDevice, TouchesNoStatistic) {
  for (const Method method : {Method::sgd, Method::kfac}) {
    for (const bool record : {false, true}) {
      const Recipe recipe = recipe_of(DType::f16, method, record);
      ModelTraining with(recipe, Device::cuda()), without(recipe, Device::cuda());
      double scale = 0x1p40;
      for (int step = 0; step < 2; ++step) {
        EXPECT_TRUE(with.step(step, 0x1p12).updated);
        EXPECT_TRUE(without.step(step, 0x1p12).updated);
      }
      const std::vector<double> weights = with.weights();
      const SavedState before = tensors_of(with.optimizer());
      int skipped = 0;
      while (scale > 0x1p12) {
        const kfac::StepReport report = with.step(2, scale);
        if (report.updated) break;
        ++skipped;
        EXPECT_GT(report.agreement.nonfinite_gradient + report.agreement.nonfinite_statistic, 0);
        EXPECT_EQ(report.agreement.nonfinite_loss, 0);
        EXPECT_EQ(with.waits(), is_emulated() ? 1 : 0);
        EXPECT_EQ(with.weights(), weights);
        expect_same_tensors(tensors_of(with.optimizer()), before);
        scale /= 0x1p14;
      }
      EXPECT_EQ(skipped, 2);
      EXPECT_TRUE(with.step(2, 0x1p12).updated);
      EXPECT_TRUE(without.step(2, 0x1p12).updated);
      EXPECT_EQ(with.weights(), without.weights());
      expect_same_tensors(tensors_of(with.optimizer()), tensors_of(without.optimizer()));
    }
  }
}

/// A loss that is not finite does not indicate a loss scale that is too large. The step's flags
/// distinguish the two, without an extra synchronization.
TEST(OverflowOnDevice, IsDistinguishedFromALossThatIsNotFinite) {
  ModelTraining training(recipe_of(DType::bf16, Method::kfac, false), Device::cuda());
  EXPECT_TRUE(training.step(0).updated);
  training.load(1);
  ops::fill(training.ctx(), training.images().slice(0, 0, 1),
            std::numeric_limits<double>::infinity());
  const kfac::StepReport report = training.update(1);
  EXPECT_FALSE(report.updated);
  EXPECT_EQ(report.agreement.nonfinite_loss, 1);
  EXPECT_EQ(training.waits(), is_emulated() ? 1 : 0);
}

}  // namespace
}  // namespace dkfac::testing
