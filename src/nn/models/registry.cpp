#include <algorithm>
#include <cmath>

#include "dkfac/core/error.h"

#include "nn/models/models.h"

namespace dkfac::nn {
namespace {

/// What options a model accepts.
enum Feature : unsigned {
  kConvs = 1,     ///< Begins with a convolution; BatchNorm.
  kWidths = 2,    ///< Stages of a width.
  kBranches = 4,  ///< BatchNorm at the end of residual branches.
  kMaxPools = 8,  ///< Max pooling behind an activation.
  kDense = 16     ///< Linear layers alone.
};
constexpr unsigned kCifarResNet = kConvs | kWidths | kBranches, kResNet = kCifarResNet | kMaxPools;
constexpr unsigned kVgg = kConvs | kWidths | kMaxPools;

constexpr ModelSwitches kUsual{false, PoolOrder::norm_activation_pool, false, 0.0, 1.0};
constexpr ModelSwitches kPlain{false, PoolOrder::norm_activation_pool, false, 0.0, 1.0 / 8};
constexpr ModelSwitches kTuned{true, PoolOrder::pool_norm_activation, true, 0.3, 1.0 / 16};

struct Entry {
  const char* name;
  unsigned features;
  std::unique_ptr<Layer> (*make)(const ModelOptions&);
  const ModelSwitches* preset = &kUsual;
  WeightInit init = WeightInit::he_normal;

  [[nodiscard]] bool has(Feature feature) const { return (features & feature) != 0; }
};
constexpr Entry kModels[] = {{"mlp", kDense, make_mlp},
                             {"autoencoder", kDense, make_autoencoder, &kUsual, WeightInit::glorot},
                             {"lenet-bn", kConvs | kMaxPools, make_lenet_bn},
                             {"resnet9", kVgg, make_resnet9, &kTuned, WeightInit::uniform},
                             {"resnet9-plain", kVgg, make_resnet9, &kPlain, WeightInit::uniform},
                             {"resnet18", kCifarResNet, make_resnet18},
                             {"resnet20", kCifarResNet, make_resnet20},
                             {"resnet32", kCifarResNet, make_resnet32},
                             {"resnet34", kResNet, make_resnet34},
                             {"resnet50", kResNet, make_resnet50},
                             {"resnet50-d", kResNet, make_resnet50d},
                             {"resnet101", kResNet, make_resnet101},
                             {"resnet152", kResNet, make_resnet152},
                             {"vgg16-bn", kVgg, make_vgg16_bn}};

/// Returns `set` with the preset's value of each that is not set.
ModelSwitches filled(ModelSwitches set, const ModelSwitches& preset) {
  const auto fill = [](auto& value, const auto& usual) {
    if (!value) value = usual;
  };
  fill(set.whitening, preset.whitening);
  fill(set.pool_order, preset.pool_order);
  fill(set.frozen_bn_scale, preset.frozen_bn_scale);
  fill(set.celu_alpha, preset.celu_alpha);
  fill(set.logit_scale, preset.logit_scale);
  return set;
}

std::string known_names() {
  std::string text;
  for (const Entry& entry : kModels) text += (text.empty() ? "" : ", ") + std::string(entry.name);
  return text;
}

const Entry& find(const std::string& name) {
  for (const Entry& entry : kModels) {
    if (name == entry.name) return entry;
  }
  throw InvalidArgument(detail::concat("[make_model] there is no model '", name,
                                       "'; choose one of: ", known_names()));
}

/// Rejects options that the model would ignore.
void check_options(const Entry& entry, const ModelOptions& options) {
  DKFAC_CHECK(options.classes > 0, "[make_model] classes is ", options.classes, "; it must be > 0");
  DKFAC_CHECK(options.width >= 0, "[make_model] width is ", options.width,
              "; it must be > 0, or 0 for the published one");
  DKFAC_CHECK(!options.classifier_stddev || *options.classifier_stddev > 0,
              "[make_model] classifier_stddev is ", *options.classifier_stddev, "; it must be > 0");
  DKFAC_CHECK(options.width == 0 || entry.has(kWidths), "[make_model] ", options.name,
              " has no width to set; leave it out");
  DKFAC_CHECK(!options.zero_gamma || entry.has(kBranches), "[make_model] ", options.name,
              " has no BatchNorm at the end of a residual branch for zero_gamma; leave it out");
  DKFAC_CHECK(entry.has(kDense) || (options.widths.empty() && !options.activation), "[make_model] ",
              options.name, " has no widths or activation to set; leave them out");
  DKFAC_CHECK(std::ranges::all_of(options.widths, [](std::int64_t width) { return width > 0; }),
              "[make_model] a width is not above 0; all must be");
  const ModelOptions usual;
  DKFAC_CHECK(entry.has(kConvs) || (options.norm_epsilon == usual.norm_epsilon &&
                                    options.norm_momentum == usual.norm_momentum &&
                                    options.norm_scale == usual.norm_scale &&
                                    options.norm_scale_stddev == usual.norm_scale_stddev),
              "[make_model] ", options.name, " has no BatchNorm to set; leave its options out");
}

/// Rejects switches that the model lacks, and values that do not go together. `all`: the switches
/// with the preset's values.
void check_switches(const Entry& entry, const ModelOptions& options, const ModelSwitches& all) {
  const ModelSwitches& set = options.switches;
  DKFAC_CHECK(!set.whitening || entry.has(kConvs), "[make_model] ", options.name,
              " has no convolution for whitening filters; leave whitening out");
  DKFAC_CHECK(!set.frozen_bn_scale || entry.has(kConvs), "[make_model] ", options.name,
              " has no BatchNorm for frozen_bn_scale; leave it out");
  DKFAC_CHECK(!set.pool_order || entry.has(kMaxPools), "[make_model] ", options.name,
              " has no max pooling behind an activation for pool_order; leave it out");
  DKFAC_CHECK(*all.celu_alpha >= 0 && std::isfinite(*all.celu_alpha), "[make_model] celu_alpha is ",
              *all.celu_alpha, "; it must be > 0, or 0 for ReLU");
  DKFAC_CHECK(*all.logit_scale > 0 && std::isfinite(*all.logit_scale),
              "[make_model] logit_scale is ", *all.logit_scale, "; it must be > 0");
  DKFAC_CHECK(options.norm_scale > 0 && std::isfinite(options.norm_scale),
              "[make_model] norm_scale is ", options.norm_scale, "; it must be > 0");
  DKFAC_CHECK(!set.celu_alpha || *set.celu_alpha == 0 ||
                  options.activation.value_or(DenseActivation::relu) == DenseActivation::relu,
              "[make_model] celu_alpha is for ReLUs, and activation is another; leave it out");
  const bool frozen = *all.frozen_bn_scale;
  DKFAC_CHECK(!frozen || !options.zero_gamma, "[make_model] zero_gamma with frozen_bn_scale would ",
              "keep every residual branch at zero; leave one of them out");
  DKFAC_CHECK(!frozen || options.norm_scale_stddev == 0, "[make_model] norm_scale_stddev is ",
              options.norm_scale_stddev, " and frozen_bn_scale keeps all scales equal; leave one ",
              "of them out");
}

}  // namespace

void check_image(const ModelOptions& options, std::int64_t least) {
  const Shape& image = options.input;
  const bool fits = image.ndim() == 3 && image[0] >= least && image[1] >= least && image[2] > 0;
  DKFAC_CHECK(fits, "[make_model] ", options.name, " takes images [h, w, c] of ", least, "x", least,
              " pixels or more, not ", image, "; choose other data or another model");
}

std::unique_ptr<Layer> make_layers(const ModelOptions& options) {
  const Entry& entry = find(options.name);
  check_options(entry, options);
  ModelOptions resolved = options;
  resolved.switches = filled(options.switches, *entry.preset);
  check_switches(entry, options, resolved.switches);
  return entry.make(resolved);
}

std::unique_ptr<Model> make_model(Context& ctx, const ModelOptions& options) {
  auto model = std::make_unique<Model>(ctx, options.name, make_layers(options), options.input,
                                       options.dtype, options.seed, options.compute);
  model->set_fused_moments(options.fused_moments);
  model->set_fused_backward(options.fused_backward);
  initialize_weights(ctx, *model, options.init.value_or(find(options.name).init), options);
  return model;
}

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const Entry& entry : kModels) names.emplace_back(entry.name);
  return names;
}

}  // namespace dkfac::nn
