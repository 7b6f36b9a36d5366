// The ImageNet recipes: what they say, and that each of them trains.

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/app/config.h"
#include "dkfac/app/trainer.h"
#include "dkfac/comm/in_process.h"
#include "dkfac/core/threads.h"

namespace dkfac::app {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kImages = 1281167;

std::vector<fs::path> recipes() {
  std::vector<fs::path> out;
  for (const auto& entry : fs::directory_iterator(fs::path(DKFAC_TEST_CONFIGS) / "imagenet"))
    out.push_back(entry.path());
  std::ranges::sort(out);
  return out;
}

Config recipe(const std::string& name) {
  return load_config(fs::path(DKFAC_TEST_CONFIGS) / "imagenet" / (name + ".toml"));
}

nn::Dataset imagenet(const Config& config) {
  nn::Dataset data;
  data.name = "imagenet";
  data.count = kImages;
  data.height = data.width = config.data.image_size;
  data.channels = 3;
  data.classes = 1000;
  return data;
}

class EveryRecipe : public ::testing::TestWithParam<fs::path> {};
INSTANTIATE_TEST_SUITE_P(ImageNet, EveryRecipe, ::testing::ValuesIn(recipes()),
                         [](const auto& param) {
                           std::string name = param.param.stem().string();
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

TEST_P(EveryRecipe, IsReadAndIsForAllOfImageNet) {
  const Config config = load_config(GetParam());
  EXPECT_EQ(config.run.name, "imagenet-" + GetParam().stem().string());
  EXPECT_EQ(config.data.name, "image-folder");
  EXPECT_EQ(config.model.name, "resnet50");
  EXPECT_GT(nn::batches_per_epoch(sampler_options(config, imagenet(config), 8)), 0);
}

/// Parts of the same size on 8 ranks, of the size that fits a GPU.
TEST_P(EveryRecipe, CanBeCutIntoParts) {
  Config config = load_config(GetParam());
  const std::int64_t groups = model_options(config, imagenet(config), 1).batch_norm_groups;
  config.train.micro_batches = std::max<std::int64_t>(1, config.train.global_batch / (8 * 256));
  const std::int64_t parts = 8 * config.train.micro_batches;
  const std::int64_t own = model_options(config, imagenet(config), 8).batch_norm_groups;
  EXPECT_EQ(own, std::max<std::int64_t>(1, groups / parts));
}

/// What makes a recipe small: few channels, small images, small batches.
std::vector<std::string> small_keys(const Config& config) {
  std::vector<std::string> keys{
      "data.name=synthetic-photos", "data.synthetic_train=32", "data.synthetic_test=10",
      "data.synthetic_size=36",     "data.image_size=32",      "data.test_resized=36",
      "data.synthetic_classes=12",  "data.workers=1",          "run.epochs=1",
      "run.eval_batch=10",          "run.precision=f32",       "model.width=4",
      "train.global_batch=16"};
  if (config.data.crop == nn::PhotoCrop::squashed) keys.emplace_back("data.crop_resized=36");
  if (config.model.ghost_batch > 0) keys.emplace_back("model.ghost_batch=8");
  if (config.train.loss_scale != LossScaling::none) keys.emplace_back("train.initial_loss_scale=1");
  return keys;
}

TEST_P(EveryRecipe, TrainsOnTwoRanks) {
  const Config config = load_config(GetParam(), small_keys(load_config(GetParam())));
  const nn::DataSplits data = nn::load_data(data_source(config));
  std::vector<RunResult> results(2);
  comm::run_ranks(2, [&](std::shared_ptr<comm::Communicator> comm) {
    set_threads(1);
    RunResult& result = results[static_cast<std::size_t>(comm->rank())];
    RunState state;
    train(config, std::move(comm), data, {}, state);
    result = state.result;
  });
  const RunResult& run = results[0];
  EXPECT_EQ(run.status, "ok");
  EXPECT_EQ(run.steps, 2 * std::ssize(run.epochs));
  EXPECT_EQ(run.skipped_steps, 0);
  for (const EpochRecord& epoch : run.epochs) {
    EXPECT_TRUE(std::isfinite(epoch.train_loss) && std::isfinite(epoch.test_loss));
    EXPECT_TRUE(epoch.test_top5);
  }
  EXPECT_EQ(run.epochs.back().test_loss, results[1].epochs.back().test_loss);
}

// Table 2 of Osawa et al. 2020, but for what an epoch leaves out.
TEST(KfacRecipes, SayWhatThePaperSays) {
  struct Row {
    const char* name;
    std::int64_t batch, epochs, steps;
    double mixup, power, start, end, lr, momentum, damping;
  };
  const Row rows[] = {{"kfac-4k", 4096, 35, 10948, 0.4, 11, 1, 53, 8.18e-3, 0.997, 2.5e-4},
                      {"kfac-8k", 8192, 35, 5434, 0.4, 8, 1, 53.5, 1.25e-2, 0.993, 2.5e-4},
                      {"kfac-16k", 16384, 35, 2737, 0.4, 8, 1, 53.5, 2.5e-2, 0.985, 2.5e-4},
                      {"kfac-32k", 32768, 45, 1760, 0.6, 3.5, 1.5, 49.5, 3e-2, 0.97, 2e-4},
                      {"kfac-65k", 65536, 60, 1173, 0.6, 2.9, 2, 64.5, 4e-2, 0.95, 1.5e-4},
                      {"kfac-131k", 131072, 90, 873, 1.0, 2.9, 3, 100, 7e-2, 0.93, 1e-4}};
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    const Config c = recipe(row.name);
    EXPECT_EQ(c.train.global_batch, row.batch);
    EXPECT_EQ(c.run.epochs, row.epochs);
    const std::int64_t steps = row.epochs * (kImages / row.batch);
    EXPECT_LT(std::abs(steps - row.steps), row.epochs) << "less than one an epoch";
    EXPECT_EQ(c.regularize.mixup.alpha, row.mixup);
    EXPECT_EQ(c.optimizer.momentum, row.momentum);
    EXPECT_EQ(c.optimizer.curvature.damping, row.damping);
    EXPECT_EQ(learning_rate(c, 0), row.lr);
    EXPECT_EQ(learning_rate(c, row.start), row.lr);
    const double half = 0.5 * (row.start + row.end);
    EXPECT_NEAR(learning_rate(c, half), row.lr * std::pow(0.5, row.power), 1e-12);
  }
}

TEST(LarsRecipes, RiseAndFallAsTheReference) {
  const Config c = recipe("lars-8k");
  EXPECT_EQ(learning_rate(c, 0), 0);
  EXPECT_DOUBLE_EQ(learning_rate(c, 2.5), 8.5);
  EXPECT_DOUBLE_EQ(learning_rate(c, 5), 17);
  EXPECT_DOUBLE_EQ(learning_rate(c, 5 + 39.0 / 2), 17 * 0.25);
  // Warm-up and decay have the steps of the reference, to less than an epoch.
  const struct {
    const char* name;
    double steps;
  } decays[] = {{"lars-4k", 13137}, {"lars-8k", 6095}, {"lars-32k", 2267}, {"lars-65k", 1133}};
  for (const auto& [name, steps] : decays) {
    const Config config = recipe(name);
    const double per_epoch =
        static_cast<double>(kImages) / static_cast<double>(config.train.global_batch);
    EXPECT_NEAR((config.lr.end - config.lr.start) * per_epoch, steps, per_epoch) << name;
  }
}

}  // namespace
}  // namespace dkfac::app
