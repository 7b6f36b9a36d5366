#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "nn/backends/conv_backend.h"
#include "nn/cuda/beside_host.h"
#include "nn/cuda/device_models.h"

/// Whole models trained by recorded passes.
namespace dkfac::testing {
namespace {

/// The state after training.
struct Outcome {
  std::vector<std::vector<double>> sums;
  std::vector<double> weights, buffers;
  LaunchCounts counts;
};

Outcome run(Recipe recipe, bool record, Device device = Device::cuda()) {
  recipe.capture = record;
  ModelTraining training(recipe, device);
  Outcome out;
  for (int step = 0; step < recipe.steps; ++step) {
    EXPECT_TRUE(training.step(step).updated);
    const int waits =
        recipe.method == Method::kfac && step == 0 ? 2 : 1;  // The first: for inverses.
    EXPECT_EQ(training.waits(), is_emulated() && device.is_cuda() ? waits : 0) << "step " << step;
    out.sums.push_back(training.sums());
  }
  out.weights = training.weights();
  out.buffers = training.buffers();
  out.counts = training.passes().counts();
  return out;
}

void expect_same_bits(const Outcome& a, const Outcome& b) {
  EXPECT_EQ(a.sums, b.sums);
  EXPECT_EQ(a.weights, b.weights);
  EXPECT_EQ(a.buffers, b.buffers);
}

struct Case {
  std::string model;
  DType compute;
};
class GraphedPassesOnDevice : public ::testing::TestWithParam<Case> {
 protected:
  [[nodiscard]] static Recipe recipe(Method method) {
    const auto [name, compute] = GetParam();
    const DType dtype = compute == DType::f64 ? DType::f64 : DType::f32;
    return {.model = small_model(name, dtype, compute), .method = method, .steps = 5};
  }
};

TEST_P(GraphedPassesOnDevice, GiveTheBitsOfPassesAsTheyAre) {
  for (const Method method : {Method::sgd, Method::lars}) {
    if (method == Method::lars && GetParam().model != "lenet-bn") continue;
    const Outcome graphed = run(recipe(method), true), plain = run(recipe(method), false);
    expect_same_bits(graphed, plain);
    EXPECT_EQ(graphed.counts.eager, 1) << graphed.counts.reason;
    EXPECT_EQ(graphed.counts.captured, 1);
    EXPECT_EQ(graphed.counts.replayed, 4);
    EXPECT_EQ(graphed.counts.refused, 0) << graphed.counts.reason;
    EXPECT_EQ(plain.counts.eager, 5);
    EXPECT_EQ(plain.counts.replayed, 0);
  }
}

/// Statistics in steps 0, 3 and 6; steps 1 and 2 are the first and the second without them, which
/// may need the memory of the model otherwise: the second pass with statistics then finds it taken,
/// and allocates more.
TEST_P(GraphedPassesOnDevice, RecordStepsWithStatisticsToo) {
  if (is_emulated() && GetParam().model == "mlp")
    GTEST_SKIP() << "width 512 takes plain loops long";
  Recipe kfac = recipe(Method::kfac);
  kfac.statistics_every = 3;
  kfac.steps = 7;
  const Outcome graphed = run(kfac, true), plain = run(kfac, false);
  expect_same_bits(graphed, plain);
  EXPECT_LE(graphed.counts.refused, 1) << graphed.counts.reason;
  EXPECT_EQ(graphed.counts.eager, 2 + graphed.counts.refused);
  EXPECT_EQ(graphed.counts.replayed, 5 - graphed.counts.refused);
}

std::vector<Case> cases() {
  return {{"mlp", DType::f32},      {"lenet-bn", DType::f32}, {"resnet20", DType::f32},
          {"resnet20", DType::f16}, {"resnet9", DType::bf16}, {"resnet9", DType::f64}};
}
std::string name_of_case(const ::testing::TestParamInfo<Case>& info) {
  std::string name = info.param.model;
  std::erase(name, '-');
  return name + "_" + std::string(name_of(info.param.compute));
}
INSTANTIATE_TEST_SUITE_P(Models, GraphedPassesOnDevice, ::testing::ValuesIn(cases()), name_of_case);

/// An image of three channels is widened for cuDNN, into memory of the first convolution's own: a
/// larger one, here in evaluation, moves it. All other memory is as large for both sizes of images.
TEST(GraphedPasses, AreRecordedAnewWhereTheWidenedImageHasGrown) {
  if (nn::cuda::make_cudnn_conv() == nullptr) GTEST_SKIP() << "this build has no cuDNN";
  Context ctx(Device::cuda()), host;
  const auto model = nn::make_model(ctx, small_model("resnet50", DType::f32, DType::f16));
  const auto images = [&](std::int64_t side, std::uint64_t seed) {
    return to_device(ctx, random_on_host(host, Shape{2, side, side, 3}, DType::f16, seed));
  };
  const Tensor x = images(63, 1), larger = images(64, 2);
  const Tensor labels = Tensor::zeros(ctx, {2}, DType::i32);
  Tensor sums = Tensor::zeros(ctx, {2}, DType::f64);
  nn::GraphedPasses passes(*model, nullptr, {.capture = true});
  const auto gradients = [&] {
    passes.run(ctx, {.images = x, .labels = labels, .sums = sums});
    return device_values(ctx, model->gradients());
  };
  (void)gradients();
  const std::vector<double> expected = gradients();
  EXPECT_EQ(gradients(), expected);
  EXPECT_EQ(passes.counts().captured, 1);
  const std::size_t held = model->allocated_bytes();
  (void)model->forward(ctx, larger, nn::Mode::eval);
  EXPECT_GT(model->allocated_bytes(), held);
  EXPECT_EQ(gradients(), expected);
  EXPECT_EQ(passes.counts().captured, 2);
  EXPECT_EQ(gradients(), expected);
  EXPECT_EQ(passes.counts().captured, 2) << "control: once is enough";
}

Recipe small_recipe(Method method = Method::sgd) {
  return {.model = small_model("mlp", DType::f32), .method = method, .steps = 8};
}

TEST(GraphedPasses, RecordAnewForAnotherLossScale) {
  Recipe recipe = small_recipe();
  recipe.loss_scale = [](int step) { return step < 4 ? 64.0 : 128.0; };
  const Outcome graphed = run(recipe, true);
  expect_same_bits(graphed, run(recipe, false));
  EXPECT_EQ(graphed.counts.eager, 2);
  EXPECT_EQ(graphed.counts.captured, 2);
  EXPECT_EQ(graphed.counts.replayed, 6);
}

TEST(GraphedPasses, GiveSeveralRanksTheBitsOfPassesAsTheyAre) {
  for (const Method method : {Method::sgd, Method::kfac}) {
    Recipe recipe = small_recipe(method);
    recipe.model = small_model("lenet-bn", DType::f32);
    recipe.groups = 2;
    recipe.statistics_every = 4;
    const TrainedModel plain = train_model(recipe, Device::cuda(), 2);
    recipe.capture = true;
    const TrainedModel graphed = train_model(recipe, Device::cuda(), 2);
    recipe.part_bytes = 4096;
    const TrainedModel in_parts = train_model(recipe, Device::cuda(), 2);
    for (const TrainedModel* trained : {&graphed, &in_parts}) {
      EXPECT_EQ(trained->losses, plain.losses);
      EXPECT_EQ(trained->weights, plain.weights);
      EXPECT_EQ(trained->buffers, plain.buffers);
    }
  }
}

TEST(GraphedPasses, OfTheHostAreAsTheyAre) {
  const Outcome on_host = run(small_recipe(), true, Device::cpu());
  EXPECT_EQ(on_host.counts.eager, 8);
  EXPECT_EQ(on_host.counts.captured + on_host.counts.replayed + on_host.counts.refused, 0);
}

}  // namespace
}  // namespace dkfac::testing
