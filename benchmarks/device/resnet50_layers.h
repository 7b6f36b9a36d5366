#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dkfac/core/layer_spec.h"

/// A convolution, or the classifier, of ResNet-50 v1.5 (stride in the 3x3) for square images: its
/// specification and the size of its input.
struct BenchLayer {
  std::string name;
  dkfac::LayerSpec spec;
  std::int64_t in_c = 0, in_hw = 1, out_c = 0, out_hw = 1;
};

inline std::vector<BenchLayer> resnet50_layers(std::int64_t pixels) {
  std::vector<BenchLayer> layers;
  const auto conv = [&](std::string name, std::int64_t in, std::int64_t out, int kernel, int stride,
                        std::int64_t hw) {
    dkfac::Conv2dSpec spec;
    spec.in = in;
    spec.out = out;
    spec.window = dkfac::Window::square(kernel, stride, kernel / 2);
    spec.bias = false;
    const std::int64_t out_hw = spec.window.out_h(hw);
    layers.push_back({std::move(name), spec, in, hw, out, out_hw});
    return out_hw;
  };
  std::int64_t hw = conv("stem", 3, 64, 7, 2, pixels);
  hw = (hw + 2 - 3) / 2 + 1;  // The 3x3 max pooling.
  std::int64_t in = 64;
  const std::int64_t blocks[] = {3, 4, 6, 3};
  for (int stage = 0; stage < 4; ++stage) {
    const std::int64_t width = std::int64_t{64} << stage;
    for (std::int64_t block = 0; block < blocks[stage]; ++block) {
      const std::string name = "stage" + std::to_string(stage + 1) + "." + std::to_string(block);
      const int stride = stage > 0 && block == 0 ? 2 : 1;
      conv(name + ".conv1", in, width, 1, 1, hw);
      const std::int64_t out_hw = conv(name + ".conv2", width, width, 3, stride, hw);
      conv(name + ".conv3", width, 4 * width, 1, 1, out_hw);
      if (block == 0) conv(name + ".shortcut", in, 4 * width, 1, stride, hw);
      in = 4 * width;
      hw = out_hw;
    }
  }
  layers.push_back({"fc", dkfac::LinearSpec{.in = 2048, .out = 1000}, 2048, 1, 1000, 1});
  return layers;
}

/// Returns a few small layers of the same kinds, for smoke tests.
inline std::vector<BenchLayer> tiny_layers() {
  std::vector<BenchLayer> all = resnet50_layers(32), few;
  for (const BenchLayer& layer : all)
    if (layer.name == "stem" || layer.name.starts_with("stage1.0")) few.push_back(layer);
  return few;
}
