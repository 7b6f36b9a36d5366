// The ImageNet recipes: what they say, that each of them trains, and what the matched pair shares.

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/comm/in_process.h"
#include "dkfac/core/threads.h"

#include "app/report/settings.h"
#include "app/shared/config.h"
#include "app/shared/phases.h"
#include "app/shared/trainer.h"
#include "app/whole_run.h"

namespace dkfac::app {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kImages = 1281167;

constexpr const char* kMatched = "lars-16k-matched";  ///< No published recipe.

std::vector<fs::path> recipes() {
  std::vector<fs::path> out;
  for (const auto& entry : fs::directory_iterator(fs::path(DKFAC_TEST_CONFIGS) / "imagenet"))
    if (entry.path().stem() != kMatched) out.push_back(entry.path());
  std::ranges::sort(out);
  return out;
}

Config recipe(const std::string& name) {
  return load_config(fs::path(DKFAC_TEST_CONFIGS) / "imagenet" / (name + ".toml"));
}

data::Dataset imagenet(const Config& config) {
  data::Dataset data;
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
  EXPECT_GT(data::batches_per_epoch(sampler_options(config, imagenet(config), 8)), 0);
}

/// Parts of the same size on 8 ranks, of the size that fits a GPU. (In phases batches change, and
/// groups are the parts.)
TEST_P(EveryRecipe, CanBeCutIntoParts) {
  Config config = load_config(GetParam());
  if (config.model.ghost_batch == 0) {
    const std::vector<std::string> keys{"train.micro_batches=16"};
    for (const Phase& phase : phases_of(load_config(GetParam(), keys)))
      EXPECT_EQ(phase.config.train.global_batch % (8 * 16), 0);
    return;
  }
  const std::int64_t groups = model_options(config, imagenet(config), 1).batch_norm_groups;
  config.train.micro_batches = std::max<std::int64_t>(1, config.train.global_batch / (8 * 256));
  const std::int64_t parts = 8 * config.train.micro_batches;
  const std::int64_t own = model_options(config, imagenet(config), 8).batch_norm_groups;
  EXPECT_EQ(own, std::max<std::int64_t>(1, groups / parts));
}

/// 32 pixels for 224 and less, more for more; batches in thousandths.
std::string small_size(std::int64_t size) { return std::to_string(size <= 224 ? 32 : 40); }
std::string small_batch(std::int64_t batch) {
  return std::to_string(std::clamp<std::int64_t>(batch / 1024, 8, 24));
}

/// What makes a recipe small: few channels, small images, small batches, phases of one epoch.
std::vector<std::string> small_keys(const Config& config) {
  std::vector<std::string> keys{"data.name=synthetic-photos",
                                "data.synthetic_train=48",
                                "data.synthetic_test=10",
                                "data.synthetic_size=40",
                                "data.synthetic_classes=12",
                                "data.image_size=32",
                                "data.workers=1",
                                "run.eval_batch=10",
                                "run.precision=f32",
                                "model.width=4",
                                "train.global_batch=16"};
  if (config.data.test_resized > 0) keys.emplace_back("data.test_resized=36");
  if (config.data.crop == data::PhotoCrop::squashed) keys.emplace_back("data.crop_resized=36");
  if (config.model.ghost_batch > 0) keys.emplace_back("model.ghost_batch=8");
  if (config.train.loss_scale != LossScaling::none) keys.emplace_back("train.initial_loss_scale=1");
  // Its rates, those of batches a thousand times as large, leave the range of f32 on some
  // processors.
  if (config.optimizer.options.sgd.nesterov) keys.emplace_back("optimizer.momentum=0.1");
  const std::vector<Phase> phases = phases_of(config);
  if (phases.size() == 1) keys.emplace_back("run.epochs=1");
  for (std::size_t i = 0; phases.size() > 1 && i < phases.size(); ++i) {
    const std::string prefix = "phase." + std::to_string(i + 1) + ".";
    const Phase& phase = phases[i];
    keys.push_back(prefix + "epochs=1");
    for (const std::string& key : phase.changed) {
      if (key == "data.image_size")
        keys.push_back(prefix + key + "=" + small_size(phase.config.data.image_size));
      if (key == "train.global_batch")
        keys.push_back(prefix + key + "=" + small_batch(phase.config.train.global_batch));
    }
  }
  return keys;
}

TEST_P(EveryRecipe, TrainsOnTwoRanks) {
  const Config config = load_config(GetParam(), small_keys(load_config(GetParam())));
  PhaseData data;
  for (const Phase& phase : phases_of(config))
    data.push_back(std::make_shared<data::DataSplits>(data::load_data(data_source(phase.config))));
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
  EXPECT_EQ(std::ssize(run.epochs), std::ssize(phases_of(config)));
  EXPECT_GE(run.steps, 2 * std::ssize(run.epochs)) << "some of each phase";
  EXPECT_EQ(run.skipped_steps, 0);
  for (const EpochMetrics& epoch : run.epochs) {
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
    EXPECT_EQ(c.optimizer.momentum(), row.momentum);
    EXPECT_EQ(c.optimizer.options.kfac.curvature.damping, row.damping);
    EXPECT_EQ(c.optimizer.options.kfac.curvature.communication.weight_wire, DType::f16);
    // The view of validation, and the normalisation of the published code.
    EXPECT_EQ(data_source(c).photo_test_crop, data::PhotoCrop::squashed_centre);
    EXPECT_EQ(data_source(c).photo_test_resized, 256);
    EXPECT_EQ(c.model.bn_epsilon, 2e-5);
    EXPECT_EQ(c.model.bn_momentum, 0.1);
    EXPECT_EQ(c.model.bn_scale_stddev, 0.05);
    EXPECT_EQ(learning_rate(c, 0), row.lr);
    EXPECT_EQ(learning_rate(c, row.start), row.lr);
    const double half = 0.5 * (row.start + row.end);
    EXPECT_NEAR(learning_rate(c, half), row.lr * std::pow(0.5, row.power), 1e-12);
  }
}

double rate(const std::string& name, double epoch) {
  const std::vector<Phase> phases = phases_of(recipe(name));
  return learning_rate(phase_at(phases, 1 + static_cast<std::int64_t>(epoch)), epoch);
}

// Goyal et al. 2017, section 5.1, for a batch of 8192.
TEST(SgdRecipes, RiseToThreeAndFallByTens) {
  EXPECT_DOUBLE_EQ(rate("sgd-8k", 0), 0.1);
  EXPECT_DOUBLE_EQ(rate("sgd-8k", 2.5), 1.65);
  for (const auto& [epoch, expected] :
       {std::pair{5.0, 3.2}, {29.9, 3.2}, {30.0, 0.32}, {60.0, 0.032}, {80.0, 0.0032}})
    EXPECT_DOUBLE_EQ(rate("sgd-8k", epoch), expected);
}

TEST(PhasedRecipes, HaveTheEpochsSizesBatchesAndRatesOfTheirSources) {
  struct Row {
    std::int64_t epochs, size, batch;
    double first, last;  // Rates at both ends.
  };
  const std::vector<Row> fastai{{6, 128, 64, 1.88, 3.76},       {10, 128, 128, 3.76, 3.76},
                                {3, 224, 64, 1.88, 1.88},       {12, 224, 192, 0.564, 0.564},
                                {6, 224, 192, 0.0564, 0.0564},  {1, 288, 128, 0.0376, 0.0376},
                                {1, 288, 128, 0.00376, 0.00376}};
  const double cosine_28 = 0.0192 + 0.5 * (1.92 - 0.0192) * (1 + std::cos(M_PI * 11 / 13));
  const std::vector<Row> moxing{{6, 128, 64, 1.92, 3.84},
                                {8, 128, 128, 3.84, 3.84},
                                {3, 224, 128, 3.84, 1.92},
                                {11, 224, 160, 1.92, cosine_28},
                                {2, 288, 128, cosine_28, 0.0192}};
  for (const auto& [name, rows] :
       {std::pair{"fastai-18min", fastai}, std::pair{"moxing-10min", moxing}}) {
    const std::vector<Phase> phases = phases_of(recipe(name));
    ASSERT_EQ(phases.size(), rows.size()) << name;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      SCOPED_TRACE(testing::Message() << name << ", phase " << i + 1);
      const Phase& phase = phases[i];
      EXPECT_EQ(phase.epochs, rows[i].epochs);
      EXPECT_EQ(phase.config.data.image_size, rows[i].size);
      EXPECT_EQ(phase.config.train.global_batch, 128 * rows[i].batch);
      const auto begin = static_cast<double>(phase.first_epoch - 1);
      EXPECT_NEAR(learning_rate(phase, begin), rows[i].first, 1e-5);
      EXPECT_NEAR(learning_rate(phase, begin + static_cast<double>(phase.epochs)), rows[i].last,
                  1e-5);
    }
  }
}

/// Each rank has as many images as a GPU of the published runs; BatchNorm still takes 64 to 128.
TEST(LarsRecipes, ShareBatchNormOverManyRanks) {
  for (const auto& [name, ranks, shared] :
       {std::tuple{"lars-8k", 256, 2}, {"lars-32k", 512, 2}, {"lars-65k", 1024, 2}}) {
    SCOPED_TRACE(name);
    const Config c = recipe(name);
    EXPECT_EQ(batch_norm_ranks(c, ranks), shared);
    EXPECT_EQ(model_options(c, imagenet(c), ranks).batch_norm_groups, 1);
    EXPECT_NO_THROW((void)sampler_options(c, imagenet(c), ranks));
  }
}

TEST(LarsRecipes, RiseAndFallAsTheReference) {
  const Config c = recipe("lars-8k");
  EXPECT_EQ(learning_rate(c, 0), 0);
  EXPECT_DOUBLE_EQ(learning_rate(c, 2.5), 8.5);
  EXPECT_DOUBLE_EQ(learning_rate(c, 5), 17);
  EXPECT_DOUBLE_EQ(learning_rate(c, 5 + 39.0 / 2), (17 - 1e-4) * 0.25 + 1e-4);
  EXPECT_DOUBLE_EQ(learning_rate(c, 44), 1e-4);  // end_learning_rate
}

TEST(LarsRecipes, SayWhatTheReferenceConvergencePointsSay) {
  struct Row {
    const char* name;
    std::int64_t batch;
    double lr, momentum, weight_decay, warmup;
    double steps;  // Of the decay.
  };
  const Row rows[] = {{"lars-4k", 4096, 10, 0.9, 2e-4, 5, 13137},
                      {"lars-8k", 8192, 17, 0.9, 2e-4, 5, 6095},
                      {"lars-32k", 32768, 21.2, 0.94, 2.5e-5, 16, 2267},
                      {"lars-65k", 65536, 24.699, 0.951807, 1e-4, 31, 1133}};
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    const Config c = recipe(row.name);
    EXPECT_EQ(c.train.global_batch, row.batch);
    EXPECT_EQ(c.optimizer.momentum(), row.momentum);
    EXPECT_EQ(c.optimizer.options.sgd.weight_decay, row.weight_decay);
    EXPECT_EQ(learning_rate(c, 0), 0);
    EXPECT_DOUBLE_EQ(learning_rate(c, row.warmup / 2), row.lr / 2);
    EXPECT_DOUBLE_EQ(learning_rate(c, row.warmup), row.lr);
    // To less than an epoch.
    const double per_epoch = static_cast<double>(kImages) / static_cast<double>(row.batch);
    EXPECT_NEAR((c.lr.end - row.warmup) * per_epoch, row.steps, per_epoch);
  }
}

/// The sections in which two files say anything different, but for the label of the run.
std::set<std::string> sections_that_differ(const std::string& a, const std::string& b) {
  std::vector<RunGroup> groups{{a, {{}}}, {b, {{}}}};
  for (RunGroup& group : groups) group.runs[0].configuration = to_toml(recipe(group.name));
  std::set<std::string> sections;
  for (const auto& setting : differing_settings(groups))
    sections.insert(setting.first.substr(0, setting.first.find('.')));
  return sections;
}

TEST(MatchedPair, DiffersInOptimizerAndRateAlone) {
  using Sections = std::set<std::string>;
  EXPECT_EQ(sections_that_differ("kfac-16k", kMatched), (Sections{"lr", "optimizer"}));
  EXPECT_EQ(recipe(kMatched).optimizer.type, optim::OptimizerType::lars);
  // The published recipes of the two are no such pair.
  EXPECT_EQ(sections_that_differ("kfac-32k", "lars-32k"),
            (Sections{"augment", "data", "lr", "model", "optimizer", "run", "train"}));
}

TEST(MatchedPair, BeginsItsSearchBetweenTheReferenceConvergencePoints) {
  const Config low = recipe("lars-8k"), high = recipe("lars-32k"), own = recipe(kMatched);
  const auto between = [&](const auto& value, double places) {
    const double mean = std::sqrt(value(low) * value(high));
    EXPECT_NEAR(value(own), mean, 0.5 * places) << "the geometric mean, rounded";
  };
  between([](const Config& c) { return c.lr.lr; }, 1);
  between([](const Config& c) { return 1 - c.optimizer.momentum(); }, 0.01);
  between([](const Config& c) { return c.optimizer.options.sgd.weight_decay; }, 1e-5);
  const double epochs = static_cast<double>(own.run.epochs);
  between(
      [&](const Config& c) {
        return c.lr.warmup_epochs * epochs / static_cast<double>(c.run.epochs);
      },
      1);
  EXPECT_EQ(own.lr.start, own.lr.warmup_epochs);
  EXPECT_EQ(own.lr.end, epochs);
}

}  // namespace
}  // namespace dkfac::app
