// Configurations of dkfac: each is accepted and matches its recipe.

#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"

#include "app/config/keys.h"
#include "app/shared/config.h"
#include "app/whole_run.h"

namespace dkfac::app {
namespace {

namespace fs = std::filesystem;

Config shipped(const std::string& name) {
  return load_config(fs::path(DKFAC_TEST_CONFIGS) / (name + ".toml"));
}

data::Dataset images(const DataConfig& data) {
  data::Dataset out;
  const bool cifar = data.name == "cifar-10", photos = data.name == "image-folder";
  out.count = cifar ? 50000 : 12000;
  out.height = out.width = photos ? data.image_size : cifar ? 32 : 28;
  out.channels = cifar || photos ? 3 : 1;
  out.classes = 10;
  return out;
}

TEST(ShippedConfigs, AreAcceptedAndFitTheirData) {
  for (const std::string folder : {".", "short", "resnet9-steps"}) {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(fs::path(DKFAC_TEST_CONFIGS) / folder)) {
      if (entry.path().extension() != ".toml") continue;
      SCOPED_TRACE(entry.path().string());
      Config config;
      ASSERT_NO_THROW(config = load_config(entry.path()));
      EXPECT_TRUE(names.insert(config.run.name).second) << "two configurations share a label";
      const data::Dataset data = images(config.data);
      EXPECT_NO_THROW((void)sampler_options(config, data, 2));
      Context ctx;
      nn::ModelOptions options = model_options(config, data, 1);
      if (options.name.starts_with("resnet")) options.width = 4;  // Whole ones take seconds.
      EXPECT_NO_THROW((void)nn::make_model(ctx, options));
      EXPECT_NO_THROW(config.augment.validate({data.height, data.width, data.channels}));
    }
    EXPECT_GE(names.size(), 6U) << folder;
  }
}

TEST(ShippedConfigs, OfOneNetworkDifferInTheOptimizerOnly) {
  for (const std::string network : {"cifar-resnet9", "cifar-resnet20", "imagenette"}) {
    const auto rest = [&](const std::string& optimizer) {
      Config config = shipped(network + "-" + optimizer);
      config.run.name.clear();
      config.optimizer = {};
      config.lr = {};
      return to_toml(config, Comments::none);
    };
    EXPECT_EQ(rest("kfac"), rest("sgd"));
    EXPECT_EQ(rest("lars"), rest("sgd"));
  }
}

// The recipe sums the loss over a batch of 512; a mean loss takes 512 times its rate and 1/512 of
// its decay.
TEST(ShippedConfigs, OfResnet9IsTheRecipe) {
  const Config c = shipped("cifar-resnet9-sgd");
  const double batch = 512, sum_rate_at_peak = 1.0 / 512, sum_decay = 5e-4 * 512;
  EXPECT_EQ(static_cast<double>(c.train.global_batch), batch);
  EXPECT_DOUBLE_EQ(learning_rate(c, 2), sum_rate_at_peak * batch);
  EXPECT_DOUBLE_EQ(c.optimizer.options.sgd.weight_decay, sum_decay / batch);
  EXPECT_EQ(learning_rate(c, 0), 0);
  EXPECT_DOUBLE_EQ(learning_rate(c, 1), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate(c, 5), 0.55);
  EXPECT_DOUBLE_EQ(learning_rate(c, 8), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate(c, 9.9), 0.1);
  EXPECT_EQ(c.optimizer.bias_lr_scale, 64);
  EXPECT_EQ(c.optimizer.bias_decay_scale, 1.0 / 64);
  EXPECT_TRUE(c.optimizer.options.sgd.nesterov);
  EXPECT_FALSE(c.optimizer.options.sgd.momentum_correction);
  EXPECT_EQ(c.train.label_smoothing, 0.2);
  EXPECT_EQ(c.train.ema_decay, 0.99);
  EXPECT_EQ(c.train.ema_interval, 5);
  EXPECT_EQ(c.run.tta, Tta::flip);
  EXPECT_TRUE(c.augment.flip);
  EXPECT_EQ(c.augment.pad, 4);
  const data::SamplerOptions sampler = sampler_options(c, images(c.data), 1);
  EXPECT_EQ(data::batches_per_epoch(sampler), 97);
  EXPECT_EQ(model_options(c, images(c.data), 1).batch_norm_groups, 16);
}

/// A file of configs/resnet9-steps: its epochs, its highest rate and the keys that change from the
/// step before, as in Page's notebook.
struct Step {
  const char* file;
  std::int64_t epochs;
  double peak;
  std::set<std::string> changes;
};

const std::vector<Step>& steps() {
  static const std::vector<Step> all{
      {"00-baseline", 24, 0.4, {}},
      {"01-resident", 24, 0.4, {"data.resident", "augment.randomness"}},
      {"02-pool-swap", 24, 0.4, {"model.pool_order"}},
      {"03-pool-first", 25, 0.4, {"model.pool_order", "run.epochs", "lr.knots"}},
      {"04-smoothing", 23, 0.4, {"train.label_smoothing", "run.epochs", "lr.knots"}},
      {"05-celu", 20, 0.4, {"model.celu_alpha", "run.epochs", "lr.knots"}},
      {"06-ghost", 18, 0.6, {"model.ghost_batch", "run.epochs", "lr.knots"}},
      {"07-frozen",
       17,
       0.6,
       {"model.frozen_bn_scale", "model.celu_alpha", "model.logit_scale", "optimizer.bias_lr_scale",
        "optimizer.bias_decay_scale", "run.epochs", "lr.knots"}},
      {"08-whitening", 14, 1.0, {"model.whitening", "augment.cutout", "run.epochs", "lr.knots"}},
      {"09-average", 13, 1.0, {"train.ema_decay", "run.epochs", "lr.knots"}},
      {"10-flips", 10, 1.0, {"run.tta", "augment.cutout", "run.epochs", "lr.knots"}}};
  return all;
}

std::set<std::string> differences(const Config& a, const Config& b) {
  std::set<std::string> paths;
  for (const Key& key : config_keys())
    if (key.path != "run.name" && key.get(a) != key.get(b)) paths.insert(key.path);
  return paths;
}

/// The layers of the network, without its name.
std::string layers(const Config& c) {
  const std::string text = nn::outline_model(model_options(c, images(c.data), 1))->summary();
  return text.substr(text.find('\n'));
}

TEST(ResNet9Steps, EachChangesTheKeysThatItSays) {
  std::optional<Config> before;
  for (const Step& step : steps()) {
    SCOPED_TRACE(step.file);
    const Config now = shipped(std::string("resnet9-steps/") + step.file);
    EXPECT_EQ(now.run.name, std::string("step-") + step.file);
    EXPECT_EQ(now.run.epochs, step.epochs);
    // The rate rises for a fifth of the epochs; for 5 in the baseline, whose length is 24.
    const double top = step.epochs == 24 ? 5.0 : static_cast<double>(step.epochs) / 5;
    EXPECT_DOUBLE_EQ(learning_rate(now, top), step.peak);
    EXPECT_EQ(before ? differences(*before, now) : std::set<std::string>{}, step.changes);
    before = now;
  }
}

TEST(ResNet9Steps, EndAtTheRecipe) {
  const Config last = shipped("resnet9-steps/10-flips"), recipe = shipped("cifar-resnet9-sgd");
  EXPECT_EQ(layers(last), layers(recipe));
  EXPECT_EQ(differences(last, recipe),
            (std::set<std::string>{"augment.randomness", "model.name", "model.pool_order",
                                   "model.celu_alpha", "model.frozen_bn_scale", "model.logit_scale",
                                   "model.whitening"}));
  EXPECT_NE(layers(last), layers(shipped("resnet9-steps/07-frozen"))) << "control";
  const Config longer = shipped("cifar-resnet9-long");
  EXPECT_EQ(differences(last, longer),
            (std::set<std::string>{"run.epochs", "run.target", "augment.cutout", "lr.knots"}));
  EXPECT_DOUBLE_EQ(learning_rate(longer, 16), 0.4);
  EXPECT_DOUBLE_EQ(learning_rate(longer, 79), 0.04);
}

}  // namespace
}  // namespace dkfac::app
