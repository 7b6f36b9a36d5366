#include "nn/models/models.h"

namespace dkfac::nn {

/// LeNet-5's widths. A layer before a BatchNorm has no bias, which the normalisation would cancel.
std::unique_ptr<Layer> make_lenet_bn(const ModelOptions& options) {
  check_image(options, 1);
  const Shape& image = options.input;
  constexpr std::int64_t kMaps1 = 6, kMaps2 = 16, kWide = 120, kNarrow = 84;
  const ConvOptions valid = ConvOptions::square(5, {.bias = false});
  const BatchNormOptions norm = norm_options(options);
  const std::string act = activation_of(options).kind == ActivationKind::celu ? "celu" : "relu";
  auto net = std::make_unique<Sequential>();
  const FirstConv first = add_whitening(*net, options, conv_options(5));
  net->add<Conv2d>("conv1", first.in, kMaps1, first.options);
  add_pooled_norm(*net, kMaps1, {"bn1", act + "1", "pool1"}, options, /*separate=*/true);
  net->add<Conv2d>("conv2", kMaps1, kMaps2, valid);
  add_pooled_norm(*net, kMaps2, {"bn2", act + "2", "pool2"}, options, /*separate=*/true);
  net->add<Flatten>("flatten");
  net->set_name("");  // So that errors of the input shape name the layer.
  const Shape maps = net->output_shape(Shape{1, image[0], image[1], image[2]});
  net->add<Linear>("fc1", maps.numel(), kWide, false).add<BatchNorm2d>("bn3", kWide, norm);
  add_activation(*net, act + "3", options);
  net->add<Linear>("fc2", kWide, kNarrow, false).add<BatchNorm2d>("bn4", kNarrow, norm);
  add_activation(*net, act + "4", options);
  net->add<Linear>("fc3", kNarrow, options.classes);
  add_logit_scale(*net, options);
  return net;
}

}  // namespace dkfac::nn
