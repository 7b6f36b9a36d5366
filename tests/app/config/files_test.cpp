// Configurations of dkfac: each is accepted and matches its recipe.

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"

#include "app/shared/config.h"

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
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(DKFAC_TEST_CONFIGS)) {
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
  EXPECT_GE(names.size(), 9U);
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

}  // namespace
}  // namespace dkfac::app
