#include "nn/models/models.h"

namespace dkfac::nn {

/// LeNet-5's widths. A layer before a BatchNorm has no bias, which the normalisation would cancel.
std::unique_ptr<Layer> make_lenet_bn(const ModelOptions& options) {
  check_image(options, 1);
  const Shape& image = options.input;
  constexpr std::int64_t kMaps1 = 6, kMaps2 = 16, kWide = 120, kNarrow = 84;
  const ConvOptions valid = ConvOptions::square(5, {.bias = false});
  const BatchNormOptions norm = norm_options(options);
  auto net = std::make_unique<Sequential>();
  net->add<Conv2d>("conv1", image[2], kMaps1, conv_options(5))
      .add<BatchNorm2d>("bn1", kMaps1, norm)
      .add<Relu>("relu1")
      .add<Pool2d>("pool1", PoolKind::max, 2, 2)
      .add<Conv2d>("conv2", kMaps1, kMaps2, valid)
      .add<BatchNorm2d>("bn2", kMaps2, norm)
      .add<Relu>("relu2")
      .add<Pool2d>("pool2", PoolKind::max, 2, 2)
      .add<Flatten>("flatten");
  net->set_name("");  // So that errors of the input shape name the layer.
  const Shape maps = net->output_shape(Shape{1, image[0], image[1], image[2]});
  net->add<Linear>("fc1", maps.numel(), kWide, false)
      .add<BatchNorm2d>("bn3", kWide, norm)
      .add<Relu>("relu3")
      .add<Linear>("fc2", kWide, kNarrow, false)
      .add<BatchNorm2d>("bn4", kNarrow, norm)
      .add<Relu>("relu4")
      .add<Linear>("fc3", kNarrow, options.classes);
  return net;
}

}  // namespace dkfac::nn
