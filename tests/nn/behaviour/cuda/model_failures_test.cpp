#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"

#include "nn/cuda/device_models.h"
#include "support/device_faults.h"

/// Passes in which the device fails, on request: one error that names the location, and a model
/// that works afterwards.
namespace dkfac::testing {
namespace {

class FailingPasses : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!is_emulated()) GTEST_SKIP() << "a device does not fail when asked";
  }
  std::unique_ptr<nn::Model> make() { return nn::make_model(ctx, small_model("lenet-bn", kType)); }
  nn::PassInput input(std::int64_t n) {
    return {.images = images.view().slice(0, 0, n),
            .labels = labels.view().slice(0, 0, n),
            .scale = 1.0 / static_cast<double>(n),
            .sums = sums};
  }
  /// The message of the DeviceError of a pass; empty when there is none.
  std::string failure_of(nn::GraphedPasses& passes, std::int64_t n) {
    try {
      passes.run(ctx, input(n));
    } catch (const DeviceError& error) {
      return error.what();
    }
    return {};
  }
  /// Gradients of unrecorded, recorded and replayed passes.
  std::vector<std::vector<double>> gradients(nn::Model& model, nn::GraphedPasses& passes) {
    std::vector<std::vector<double>> all;
    for (int i = 0; i < 3; ++i) {
      ops::fill(ctx, model.gradients(), -7);
      EXPECT_EQ(failure_of(passes, kFew), "");
      all.push_back(device_values(ctx, model.gradients()));
    }
    return all;
  }

  static constexpr DType kType = DType::f64;  // Whose convolutions are products.
  static constexpr std::int64_t kFew = 4, kMany = 64;
  Context ctx{Device::cuda()}, host;
  Tensor images = to_device(ctx, random_tensor(host, {kMany, 28, 28, 1}, kType, 2));
  Tensor labels = Tensor::zeros(ctx, {kMany}, DType::i32), sums = Tensor::zeros(ctx, {2}, kType);
};

TEST_F(FailingPasses, SayInWhichLayerMemoryRanOut) {
  const auto model = make();
  nn::GraphedPasses passes(*model, nullptr);
  const auto expected = gradients(*model, passes);
  {
    const LittleMemory little(1 << 16);
    const std::string text = failure_of(passes, kMany);
    EXPECT_TRUE(contains(text, "[tensor] cuda:0 is out of memory for"));
    EXPECT_TRUE(contains(text, "; use a smaller batch"));
    EXPECT_TRUE(contains(text, "(forward pass of '"));
    EXPECT_EQ(text.find("pass of"), text.rfind("pass of")) << "said once: " << text;
  }
  // Memory was lost in between, which may be allocated elsewhere: earlier recordings are not
  // replayed.
  const auto recorded = passes.counts().captured;
  EXPECT_EQ(gradients(*model, passes), expected);
  EXPECT_EQ(passes.counts().captured, recorded + 1);
  EXPECT_EQ(failure_of(passes, kMany), "");
}

/// Whichever product fails: the passes after it give the bits of a model without a failure.
TEST_F(FailingPasses, ContinueAfterAProductThatFailed) {
  const auto good = make();
  nn::GraphedPasses good_passes(*good, nullptr);
  const auto expected = gradients(*good, good_passes);
  int failed = 0;
  for (int product = 1; product < 100; ++product) {
    const auto model = make();
    nn::GraphedPasses passes(*model, nullptr);
    fail_product(product);
    const std::string text = failure_of(passes, kFew);
    fail_product(0);
    if (text.empty()) break;
    ++failed;
    EXPECT_TRUE(contains(text, "[cublas"));
    EXPECT_TRUE(contains(text, "failed on cuda:0"));
    EXPECT_TRUE(contains(text, " pass of '"));
    EXPECT_EQ(gradients(*model, passes), expected) << "product " << product;
  }
  EXPECT_GE(failed, 10) << "five layers, forward and backward";
}

/// A pass whose recording fails runs unrecorded.
TEST_F(FailingPasses, RunAsTheyAreWhenRecordingFails) {
  const auto model = make();
  nn::GraphedPasses passes(*model, nullptr);
  EXPECT_EQ(failure_of(passes, kFew), "");
  fail_product(3);
  EXPECT_EQ(failure_of(passes, kFew), "");
  EXPECT_EQ(passes.counts().refused, 1);
  EXPECT_TRUE(contains(passes.counts().reason, "failed on cuda:0"));
  EXPECT_EQ(failure_of(passes, kFew), "");
  EXPECT_EQ(passes.counts().replayed, 1);
}

}  // namespace
}  // namespace dkfac::testing
