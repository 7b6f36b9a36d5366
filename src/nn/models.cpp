#include "dkfac/core/error.h"
#include "dkfac/nn/layers.h"
#include "dkfac/nn/model.h"

namespace dkfac::nn {
namespace {

std::int64_t features_of(const Shape& shape) {
  std::int64_t features = 1;
  for (int i = 1; i < shape.ndim(); ++i) features *= shape[i];
  return features;
}

std::unique_ptr<Layer> make_mlp(const ModelOptions& options) {
  constexpr std::int64_t kHidden = 512;
  auto net = std::make_unique<Sequential>();
  net->add<Linear>("fc1", options.input.numel(), kHidden)
      .add<Relu>("relu1")
      .add<Linear>("fc2", kHidden, kHidden)
      .add<Relu>("relu2")
      .add<Linear>("fc3", kHidden, options.classes);
  return net;
}

/// LeNet-5's widths, BatchNorm before each ReLU; a layer before a BatchNorm has no bias, which the
/// normalisation would undo.
std::unique_ptr<Layer> make_lenet_bn(const ModelOptions& options) {
  const Shape& image = options.input;
  DKFAC_CHECK(image.ndim() == 3, "[make_model] lenet-bn takes images [h, w, c], not ", image);
  constexpr std::int64_t kMaps1 = 6, kMaps2 = 16, kWide = 120, kNarrow = 84;
  const ConvOptions same{.kernel_h = 5, .kernel_w = 5, .pad_h = 2, .pad_w = 2, .bias = false};
  const ConvOptions valid{.kernel_h = 5, .kernel_w = 5, .bias = false};
  const BatchNormOptions norm{.groups = options.batch_norm_groups};
  auto net = std::make_unique<Sequential>();
  net->add<Conv2d>("conv1", image[2], kMaps1, same)
      .add<BatchNorm2d>("bn1", kMaps1, norm)
      .add<Relu>("relu1")
      .add<Pool2d>("pool1", PoolKind::max, 2, 2)
      .add<Conv2d>("conv2", kMaps1, kMaps2, valid)
      .add<BatchNorm2d>("bn2", kMaps2, norm)
      .add<Relu>("relu2")
      .add<Pool2d>("pool2", PoolKind::max, 2, 2);
  net->set_name("");
  const Shape maps = net->output_shape(Shape{1, image[0], image[1], image[2]});
  net->add<Linear>("fc1", features_of(maps), kWide, false)
      .add<BatchNorm2d>("bn3", kWide, norm)
      .add<Relu>("relu3")
      .add<Linear>("fc2", kWide, kNarrow, false)
      .add<BatchNorm2d>("bn4", kNarrow, norm)
      .add<Relu>("relu4")
      .add<Linear>("fc3", kNarrow, options.classes);
  return net;
}

struct Entry {
  const char* name;
  std::unique_ptr<Layer> (*make)(const ModelOptions&);
};
constexpr Entry kModels[] = {{"mlp", make_mlp}, {"lenet-bn", make_lenet_bn}};

std::string known_names() {
  std::string text;
  for (const Entry& entry : kModels) text += (text.empty() ? "" : ", ") + std::string(entry.name);
  return text;
}

}  // namespace

std::unique_ptr<Model> make_model(Context& ctx, const ModelOptions& options) {
  for (const Entry& entry : kModels) {
    if (options.name != entry.name) continue;
    return std::make_unique<Model>(ctx, options.name, entry.make(options), options.input,
                                   options.dtype, options.seed);
  }
  throw InvalidArgument(detail::concat("[make_model] there is no model '", options.name,
                                       "'; choose one of: ", known_names()));
}

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const Entry& entry : kModels) names.emplace_back(entry.name);
  return names;
}

}  // namespace dkfac::nn
