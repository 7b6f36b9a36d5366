#include <algorithm>
#include <array>

#include "nn/models/models.h"

namespace dkfac::nn {
namespace {

constexpr std::int64_t kVggWidth = 64;
const ConvOptions kConv = ConvOptions::square(3, {.pad = 1, .bias = true});

/// Convolutions of the five stages of configuration D. Names of tensors are torchvision's, whose
/// counting includes activations.
std::unique_ptr<Layer> make_features(const FirstConv& first, const ModelOptions& options,
                                     std::int64_t width) {
  constexpr std::array<int, 5> kConvolutions{2, 2, 3, 3, 3};
  auto features = std::make_unique<Sequential>();
  FirstConv conv = first;
  int index = 0;
  for (std::size_t stage = 0; stage < kConvolutions.size(); ++stage) {
    const std::int64_t maps = width << std::min<std::size_t>(stage, 3);
    for (int i = 1; i <= kConvolutions[stage]; ++i, index += 3) {
      features->add<Conv2d>(std::to_string(index), conv.in, maps, conv.options);
      conv = {maps, kConv};
      const PooledNorm names{std::to_string(index + 1), std::to_string(index + 2),
                             std::to_string(index + 3)};
      if (i == kConvolutions[stage]) {
        add_pooled_norm(*features, maps, names, options);
      } else {
        features->add<BatchNorm2d>(names.norm, maps, norm_options(options, activation_of(options)));
      }
    }
    ++index;  // The pooling's.
  }
  return features;
}

}  // namespace

std::unique_ptr<Layer> make_vgg16_bn(const ModelOptions& options) {
  check_image(options, 32);
  const std::int64_t width = options.width > 0 ? options.width : kVggWidth, hidden = 64 * width;
  const Shape& image = options.input;
  auto net = std::make_unique<Sequential>();
  const FirstConv first = add_whitening(*net, options, kConv);
  net->add("features", make_features(first, options, width)).add<Flatten>("flatten");
  net->set_name("");  // So that errors of the input shape name the layer.
  const Shape maps = net->output_shape(Shape{1, image[0], image[1], image[2]});
  auto classifier = std::make_unique<Sequential>();
  classifier->add<Linear>("0", maps.numel(), hidden);
  add_activation(*classifier, "1", options);
  classifier->add<Linear>("3", hidden, hidden);
  add_activation(*classifier, "4", options);
  classifier->add<Linear>("6", hidden, options.classes);
  net->add("classifier", std::move(classifier));
  add_logit_scale(*net, options);
  return net;
}

}  // namespace dkfac::nn
