// Keys of recipes: augmentation, ghost batches, switches of models, linear scaling.

#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"
#include "dkfac/nn/kfac_attach.h"
#include "dkfac/optim/optimizer.h"

#include "app/shared/config.h"
#include "app/whole_run.h"

namespace dkfac::app {
namespace {

Config parse_recipe(const std::vector<std::string>& overrides) {
  return parse_config("", overrides, "test");
}

data::Dataset images_in_all(std::int64_t count) {
  data::Dataset data;
  data.count = count;
  data.height = data.width = 32;
  data.channels = 3;
  data.classes = 10;
  return data;
}

TEST(GhostBatch, DecidesTheGroupsOfARank) {
  const auto groups = [](std::vector<std::string> keys, int ranks) {
    return model_options(parse_recipe(std::move(keys)), images_in_all(1), ranks).batch_norm_groups;
  };
  EXPECT_EQ(groups({"train.global_batch=512", "model.ghost_batch=32"}, 1), 16);
  EXPECT_EQ(groups({"train.global_batch=512", "model.ghost_batch=32"}, 4), 4);
  EXPECT_THROW((void)groups({"train.global_batch=512", "model.ghost_batch=32"}, 3),
               InvalidArgument);
}

TEST(GhostBatch, ExtendsOverRanksThatHaveSmallerBatches) {
  const auto config = [](const std::string& ghost, const std::string& parts = "1") {
    return parse_recipe(
        {"train.global_batch=512", "model.ghost_batch=" + ghost, "train.micro_batches=" + parts});
  };
  EXPECT_EQ(batch_norm_ranks(config("128"), 4), 1);
  EXPECT_EQ(batch_norm_ranks(config("128"), 8), 2);
  EXPECT_EQ(batch_norm_ranks(config("128"), 16), 4);
  EXPECT_EQ(batch_norm_ranks(config("512"), 3), 3);
  EXPECT_EQ(batch_norm_ranks(config("128", "2"), 8), 4);  // 16 parts of 32.
  EXPECT_EQ(model_options(config("128"), images_in_all(1), 16).batch_norm_groups, 1);
  // 12 ranks are not dealt out to 4 groups of 8/3 ranks; one rank has no other to share with.
  EXPECT_THROW((void)batch_norm_ranks(config("64"), 12), InvalidArgument);
  EXPECT_THROW((void)batch_norm_ranks(config("512", "2"), 1), InvalidArgument);
  // Batches of one size: 512 = 3 * 170 + 2.
  EXPECT_THROW((void)sampler_options(config("512"), images_in_all(512), 3), InvalidArgument);
  EXPECT_NO_THROW((void)sampler_options(config("512"), images_in_all(512), 4));
}

TEST(GhostBatch, IsRefusedWhereItDoesNotFit) {
  EXPECT_THROW((void)parse_recipe({"train.global_batch=512", "model.ghost_batch=48"}),
               InvalidArgument);
  EXPECT_THROW((void)parse_recipe({"train.global_batch=512", "model.ghost_batch=32",
                                   "model.batch_norm_groups=16"}),
               InvalidArgument);
  for (const char* key : {"model.ghost_batch=32", "model.batch_norm_groups=2"})
    EXPECT_THROW((void)parse_recipe({"train.global_batch=512", "model.name=mlp", key}),
                 InvalidArgument)
        << key;
  // The 16 groups of a last batch would be of other sizes. As many groups of any size fit where
  // they divide it.
  for (const auto& [key, tail, fits] : {std::tuple{"model.ghost_batch=4", 0, true},
                                        {"model.ghost_batch=4", 16, false},
                                        {"model.batch_norm_groups=16", 16, true},
                                        {"model.batch_norm_groups=16", 8, false}}) {
    const Config config = parse_recipe({"train.global_batch=64", key, "train.drop_last=false"});
    const auto options = [&] { (void)sampler_options(config, images_in_all(64 + tail), 1); };
    if (fits)
      EXPECT_NO_THROW(options()) << key << ' ' << tail;
    else
      EXPECT_THROW(options(), InvalidArgument) << key << ' ' << tail;
  }
}

TEST(BatchNormKeys, ReachTheModel) {
  const nn::ModelOptions usual = model_options(parse_recipe({}), images_in_all(1), 1);
  const nn::ModelOptions preset;
  EXPECT_EQ(usual.norm_epsilon, preset.norm_epsilon);
  EXPECT_EQ(usual.norm_momentum, preset.norm_momentum);
  EXPECT_EQ(usual.norm_scale_stddev, preset.norm_scale_stddev);
  const nn::ModelOptions set =
      model_options(parse_recipe({"model.bn_epsilon=2e-5", "model.bn_momentum=0.2",
                                  "model.bn_scale_stddev=0.05"}),
                    images_in_all(1), 1);
  EXPECT_EQ(set.norm_epsilon, 2e-5);
  EXPECT_EQ(set.norm_momentum, 0.2);
  EXPECT_EQ(set.norm_scale_stddev, 0.05);
  EXPECT_THROW((void)parse_recipe({"model.bn_momentum=0"}), InvalidArgument);
}

TEST(LarsForms, AreKeysOfTheirOwn) {
  const Config clipped = parse_recipe(
      {"optimizer.type=lars", "optimizer.lars_form=clipped", "optimizer.max_trust=0.5"});
  EXPECT_EQ(clipped.optimizer.options.lars.form, optim::LarsForm::clipped);
  EXPECT_EQ(clipped.optimizer.options.lars.max_trust, 0.5);
  EXPECT_EQ(parse_recipe({"optimizer.type=lars"}).optimizer.options.lars.form,
            optim::LarsForm::mlperf);
  EXPECT_THROW((void)parse_recipe({"optimizer.type=lars", "optimizer.max_trust=0.5"}),
               InvalidArgument);
  EXPECT_THROW((void)parse_recipe({"optimizer.type=sgd", "optimizer.lars_form=larc"}),
               InvalidArgument);
}

TEST(ModelSwitches, ReachTheModel) {
  const nn::ModelOptions preset =
      model_options(parse_recipe({"model.name=resnet9"}), images_in_all(1), 1);
  EXPECT_FALSE(preset.switches.whitening || preset.switches.pool_order ||
               preset.switches.frozen_bn_scale || preset.switches.celu_alpha ||
               preset.switches.logit_scale || preset.init || preset.classifier_stddev);
  const nn::ModelOptions set = model_options(
      parse_recipe({"model.name=resnet9", "model.whitening=off",
                    "model.pool_order=norm_pool_activation", "model.frozen_bn_scale=off",
                    "model.bn_scale=0.25", "model.celu_alpha=0", "model.logit_scale=0.25",
                    "model.width=16", "model.init=he_normal", "model.classifier_stddev=0.01"}),
      images_in_all(1), 1);
  EXPECT_EQ(set.switches.whitening, false);
  EXPECT_EQ(set.switches.pool_order, nn::PoolOrder::norm_pool_activation);
  EXPECT_EQ(set.norm_scale, 0.25);
  EXPECT_EQ(set.switches.frozen_bn_scale, false);
  EXPECT_EQ(set.switches.celu_alpha, 0.0);
  EXPECT_EQ(set.switches.logit_scale, 0.25);
  EXPECT_EQ(set.width, 16);
  EXPECT_EQ(set.init, nn::WeightInit::he_normal);
  EXPECT_EQ(set.classifier_stddev, 0.01);
  EXPECT_TRUE(model_options(parse_recipe({"model.name=resnet20", "model.zero_gamma=true"}),
                            images_in_all(1), 1)
                  .zero_gamma);
  EXPECT_EQ(preset.fused_moments, nn::FusionUse::measured);
  EXPECT_EQ(preset.fused_backward, nn::FusionUse::measured);
  const nn::ModelOptions fused = model_options(
      parse_recipe({"model.fused_backward=on", "model.fused_moments=off"}), images_in_all(1), 1);
  EXPECT_EQ(fused.fused_backward, nn::FusionUse::on);
  EXPECT_EQ(fused.fused_moments, nn::FusionUse::off);
}

/// Whether f() throws InvalidArgument.
template <class F>
bool refuses(const F& f) {
  try {
    f();
  } catch (const InvalidArgument&) {
    return true;
  }
  return false;
}

TEST(ModelSwitches, AreKeysOfTheNetworksThatHaveThem) {
  for (const std::string key :
       {"model.whitening=on", "model.pool_order=pool_norm_activation", "model.frozen_bn_scale=on",
        "model.celu_alpha=0.3", "model.logit_scale=0.5", "model.zero_gamma=true"}) {
    int refused = 0;
    for (const std::string& name : nn::model_names()) {
      const Config usual = parse_recipe({"model.name=" + name});
      nn::ModelOptions options = model_options(usual, images_in_all(1), 1);
      options.zero_gamma = key.starts_with("model.zero_gamma");
      if (key.starts_with("model.whitening")) options.switches.whitening = true;
      if (key.starts_with("model.frozen")) options.switches.frozen_bn_scale = true;
      if (key.starts_with("model.pool"))
        options.switches.pool_order = nn::PoolOrder::pool_norm_activation;
      const bool without = refuses([&] { (void)nn::outline_model(options); });
      EXPECT_EQ(refuses([&] {
                  (void)parse_recipe({"model.name=" + name, key});
                }),
                without)
          << name << ' ' << key;
      refused += without;
    }
    EXPECT_EQ(refused > 0, !key.starts_with("model.celu") && !key.starts_with("model.logit"));
  }
}

TEST(LinearScaling, MultipliesTheWholeSchedule) {
  const std::vector<std::string> keys{"lr.schedule=constant", "lr.lr=0.1", "lr.warmup_epochs=5",
                                      "lr.warmup_first=0.03125", "train.global_batch=8192"};
  std::vector<std::string> scaled = keys;
  scaled.push_back("lr.base_batch=256");
  for (const double epoch : {0.0, 2.5, 5.0, 30.0}) {
    // 8192 / 256 is a power of two: no rounding.
    EXPECT_EQ(learning_rate(parse_recipe(scaled), epoch),
              32 * learning_rate(parse_recipe(keys), epoch));
  }
  // Goyal et al. 2017: from 0.1 to 0.1 * 8192 / 256 in five epochs.
  EXPECT_EQ(learning_rate(parse_recipe(scaled), 0), 0.1);
  EXPECT_EQ(learning_rate(parse_recipe(scaled), 5), 3.2);
}

TEST(SquareRootScaling, MultipliesByTheRootOfTheBatches) {
  const std::vector<std::string> keys{"lr.schedule=constant", "lr.lr=0.1",
                                      "train.global_batch=4096"};
  std::vector<std::string> scaled = keys;
  scaled.insert(scaled.end(), {"lr.base_batch=256", "lr.batch_scaling=sqrt"});
  EXPECT_EQ(learning_rate(parse_recipe(scaled), 1), 4 * learning_rate(parse_recipe(keys), 1));
  scaled.back() = "lr.batch_scaling=linear";
  EXPECT_EQ(learning_rate(parse_recipe(scaled), 1), 16 * learning_rate(parse_recipe(keys), 1));
}

TEST(SquareRootScaling, IsRefusedWithoutABatchToScaleFrom) {
  try {
    (void)parse_recipe({"lr.batch_scaling=sqrt"});
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("lr.base_batch = 0; set"), std::string::npos);
  }
  EXPECT_NO_THROW((void)parse_recipe({"lr.batch_scaling=sqrt", "lr.base_batch=1"}));
}

TEST(Augmentation, IsReadAsWritten) {
  const data::AugmentOptions a = parse_recipe({"augment.pad=4", "augment.pad_mode=zero",
                                               "augment.flip=true", "augment.alternate_flip=true",
                                               "augment.cutout=8", "augment.randomness=per_group"})
                                     .augment;
  EXPECT_EQ(a.pad, 4);
  EXPECT_EQ(a.pad_mode, data::PadMode::zero);
  EXPECT_TRUE(a.flip && a.alternate_flip);
  EXPECT_EQ(a.cutout, 8);
  EXPECT_EQ(a.randomness, data::Randomness::per_group);
  EXPECT_FALSE(parse_recipe({}).augment.any());
}

/// Keeps what the layers are registered with.
class Listener final : public optim::Optimizer {
 public:
  [[nodiscard]] std::string_view name() const override { return "listener"; }
  [[nodiscard]] LayerId add_layer(std::string, LayerSpec, optim::LayerParams params) override {
    layers.push_back(params);
    return static_cast<LayerId>(layers.size() - 1);
  }
  void prepare() override {}
  void grads_ready(LayerId, Stream, RecordScale) override {}
  kfac::StepReport step(const StepArgs&, Stream) override { return {}; }
  [[nodiscard]] std::string describe() const override { return {}; }

  std::vector<optim::LayerParams> layers;
};

TEST(BiasScales, ReachEveryLayer) {
  const Config config =
      parse_recipe({"model.name=lenet-bn", "optimizer.type=sgd", "optimizer.bias_lr_scale=64",
                    "optimizer.bias_decay_scale=0.015625"});
  Context ctx;
  const auto model = nn::make_model(ctx, model_options(config, images_in_all(1), 1));
  Listener listener;
  const nn::OptimizerAttachment attachment(*model, listener, attach_options(config));
  ASSERT_GT(listener.layers.size(), 5U);
  for (const optim::LayerParams& layer : listener.layers) {
    EXPECT_EQ(layer.weight_lr, 1);
    EXPECT_EQ(layer.bias_lr, 64);
    EXPECT_EQ(layer.bias_decay, 0.015625);
  }
}

TEST(Precision, DecidesWhatIsComputedAndWhatIsKept) {
  const auto options = [](const char* precision) {
    return model_options(parse_recipe({std::string("run.precision=") + precision}),
                         images_in_all(1), 1);
  };
  EXPECT_EQ(options("f64").dtype, DType::f64);
  EXPECT_EQ(options("f64").compute, DType::f64);
  for (const char* precision : {"f32", "bf16", "f16"})
    EXPECT_EQ(options(precision).dtype, DType::f32);
  EXPECT_EQ(options("f32").compute, DType::f32);
  EXPECT_EQ(options("bf16").compute, DType::bf16);
  EXPECT_EQ(options("f16").compute, DType::f16);
}

}  // namespace
}  // namespace dkfac::app
