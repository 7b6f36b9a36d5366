#include "app/config/table.h"

namespace dkfac::app {

namespace {

// Adds a switch whose default depends on the model.
template <class Field>
Key& add_switch(KeyTable& t, std::string path, Field field, std::string help) {
  return t.choice<std::optional<bool>>(std::move(path), field,
                                       {{"preset", std::nullopt}, {"on", true}, {"off", false}},
                                       std::move(help));
}

// All networks but those of Linear layers begin with a convolution and have BatchNorms.
std::vector<std::string> convolutional() {
  std::vector<std::string> names = nn::model_names();
  std::erase(names, "mlp");
  std::erase(names, "autoencoder");
  return names;
}

template <class Field>
void add_fusion(KeyTable& t, std::string path, Field field, std::string help) {
  using nn::FusionUse;
  t.choice<FusionUse>(
      std::move(path), field,
      {{"off", FusionUse::off}, {"on", FusionUse::on}, {"measured", FusionUse::measured}},
      std::move(help));
}

}  // namespace

void add_model_keys(KeyTable& t) {
  const std::string name = "model.name";
  t.name(name, DKFAC_FIELD(model.name), nn::model_names(), "network");
  t.text(DKFAC_KEY(model.weights),
         "safetensors file with the initial weights, under torchvision's names; a classifier of "
         "another size is drawn; empty: all are drawn");
  t.integer(DKFAC_KEY(model.batch_norm_groups), between(0, kMaxCount),
            "BatchNorm groups of a global batch, over all ranks; 0: one per rank");
  t.integer(DKFAC_KEY(model.ghost_batch), between(0, kMaxCount),
            "samples per BatchNorm group, instead of the number of groups; 0: use that number");
  t.integer(DKFAC_KEY(model.width), between(0, 1 << 16),
            "channels of the first stage of a ResNet or VGG; 0: as published");
  t.choice<std::optional<nn::WeightInit>>(DKFAC_KEY(model.init),
                                          {{"preset", std::nullopt},
                                           {"he_normal", nn::WeightInit::he_normal},
                                           {"uniform", nn::WeightInit::uniform},
                                           {"glorot", nn::WeightInit::glorot}},
                                          "initial weights");
  t.text(DKFAC_KEY(model.widths),
         "widths of the layers with dashes between, \"400-200-100-30\": the hidden ones of an MLP, "
         "and of an autoencoder those from its input to its code; empty: its own")
      .where(name, {"mlp", "autoencoder"});
  using nn::DenseActivation;
  t.choice<std::optional<DenseActivation>>(DKFAC_KEY(model.activation),
                                           {{"preset", std::nullopt},
                                            {"relu", DenseActivation::relu},
                                            {"tanh", DenseActivation::tanh},
                                            {"sigmoid", DenseActivation::sigmoid},
                                            {"gelu", DenseActivation::gelu},
                                            {"silu", DenseActivation::silu}},
                                           "preset: relu, and tanh in an autoencoder")
      .where(name, {"mlp", "autoencoder"});
  t.real(DKFAC_KEY(model.classifier_stddev), at_least(0),
         "standard deviation of the last layer's initial weights; 0: as model.init");
  t.boolean(DKFAC_KEY(model.zero_gamma),
            "the last BatchNorm scale of each residual block starts at 0")
      .where(name, {"resnet18", "resnet20", "resnet32", "resnet34", "resnet50", "resnet50-d",
                    "resnet101", "resnet152"});
  t.real(DKFAC_KEY(model.bn_epsilon), above(0), "added to the variances of BatchNorm");
  t.real(DKFAC_KEY(model.bn_momentum), above_up_to(0, 1),
         "share of a batch in the running statistics of BatchNorm");
  t.real(DKFAC_KEY(model.bn_scale), above(0),
         "initial BatchNorm scales, for good where they are frozen");
  t.real(DKFAC_KEY(model.bn_scale_stddev), at_least(0),
         "standard deviation of the initial BatchNorm scales around model.bn_scale");
  add_fusion(t, DKFAC_KEY(model.fused_moments),
             "on a device, 16-bit convolutions also compute the sums of the BatchNorm after them; "
             "measured: where that is faster");
  add_fusion(t, DKFAC_KEY(model.fused_backward),
             "on a device, f16 convolutions also sum their gradient for the BatchNorm before them; "
             "measured: where that is faster");
  add_switch(t, DKFAC_KEY(model.whitening),
             "begin with fixed filters that whiten the patches of the training images, not of "
             "photographs")
      .where(name, convolutional());
  t.choice<std::optional<nn::PoolOrder>>(
       DKFAC_KEY(model.pool_order),
       {{"preset", std::nullopt},
        {"norm_activation_pool", nn::PoolOrder::norm_activation_pool},
        {"norm_pool_activation", nn::PoolOrder::norm_pool_activation},
        {"pool_norm_activation", nn::PoolOrder::pool_norm_activation}},
       "order of max pooling, BatchNorm and activation behind a convolution; the first two compute "
       "the same")
      .where(name, {"lenet-bn", "resnet9", "resnet9-plain", "resnet34", "resnet50", "resnet50-d",
                    "resnet101", "resnet152", "vgg16-bn"});
  add_switch(t, DKFAC_KEY(model.frozen_bn_scale), "BatchNorm scales stay at model.bn_scale")
      .where(name, convolutional());
  t.real(DKFAC_KEY(model.celu_alpha), at_least(-1), "alpha of CELU; 0: ReLU; negative: as preset");
  t.real(DKFAC_KEY(model.logit_scale), at_least(0), "factor of the logits; 0: as preset");
}

void add_train_keys(KeyTable& t) {
  t.integer(DKFAC_KEY(train.global_batch), between(1, kMaxCount),
            "samples of a step over all ranks");
  t.choice<TrainLoss>(
       DKFAC_KEY(train.reconstruction),
       {{"sigmoid", TrainLoss::sigmoid}, {"squared", TrainLoss::squared}},
       "loss of an autoencoder, summed over the values of an image: cross-entropy behind a sigmoid "
       "without the entropy of the image, or half the squared error")
      .where("model.name", {"autoencoder"});
  t.real(DKFAC_KEY(train.label_smoothing), from_to_below(0, 1),
         "weight of the uniform distribution in the targets");
  t.boolean(DKFAC_KEY(train.drop_last), "leave out a last batch that is not full");
  t.integer(DKFAC_KEY(train.max_skipped_steps), at_least(1),
            "consecutive steps without update (NaN or infinity) before the run fails");
  t.real(DKFAC_KEY(train.ema_decay), from_to_below(0, 1),
         "evaluate a running average of the weights with this decay per step; 0: off");
  t.integer(DKFAC_KEY(train.ema_interval), between(1, 1 << 30),
            "steps between two updates of that average");
  t.integer(DKFAC_KEY(train.micro_batches), between(1, 1 << 16),
            "consecutive parts in which a rank's share of a batch passes through the network");
  t.choice<LossScaling>(DKFAC_KEY(train.loss_scale),
                        {{"none", LossScaling::none},
                         {"dynamic", LossScaling::dynamic},
                         {"fixed", LossScaling::fixed}},
                        "factor that keeps 16-bit gradients from underflowing");
  t.real(DKFAC_KEY(train.initial_loss_scale), between(1e-30, 1e300),
         "its first value; dynamic: halved on overflow, doubled after 2000 good steps")
      .where("train.loss_scale", {"dynamic", "fixed"});
}

}  // namespace dkfac::app
