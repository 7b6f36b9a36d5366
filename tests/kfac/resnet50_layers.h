#pragma once

#include <utility>
#include <vector>

#include "dkfac/core/layer_spec.h"

namespace dkfac::testing {

/// The layers of ResNet-50 for 1,000 classes that have factors.
inline std::vector<LayerSpec> resnet50_layers() {
  std::vector<LayerSpec> layers;
  const auto conv = [&](std::int64_t in, std::int64_t out, int side) {
    layers.emplace_back(
        Conv2dSpec{.in = in, .out = out, .window = Window::square(side), .bias = false});
  };
  conv(3, 64, 7);
  std::int64_t in = 64;
  for (const auto& [width, blocks] : {std::pair(64, 3), {128, 4}, {256, 6}, {512, 3}})
    for (int block = 0; block < blocks; ++block) {
      if (block == 0) conv(in, 4 * width, 1);
      conv(in, width, 1);
      conv(width, width, 3);
      conv(width, 4 * width, 1);
      in = 4 * width;
    }
  layers.emplace_back(LinearSpec{.in = 2048, .out = 1000});
  return layers;
}

}  // namespace dkfac::testing
