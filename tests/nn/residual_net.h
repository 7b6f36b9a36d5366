#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "dkfac/nn/layers.h"
#include "dkfac/nn/model.h"

namespace dkfac::testing {

/// Two fused residual blocks, with and without a convolution in the shortcut, for 12x12x3 images.
inline std::unique_ptr<nn::Model> residual_net(Context& ctx, DType dtype,
                                               std::optional<DType> compute) {
  using namespace nn;
  const Activation relu{ActivationKind::relu};
  const auto conv3 = [](int stride) {
    return ConvOptions::square(3, {.stride = stride, .pad = 1, .bias = false});
  };
  const auto body = [&](std::int64_t in, std::int64_t out, int stride) {
    auto net = std::make_unique<Sequential>();
    net->add<Conv2d>("conv1", in, out, conv3(stride))
        .add<BatchNorm2d>("bn1", out, BatchNormOptions{.activation = relu})
        .add<Conv2d>("conv2", out, out, conv3(1))
        .add<BatchNorm2d>("bn2", out);
    return net;
  };
  auto down = std::make_unique<Sequential>();
  down->add<Conv2d>("0", 8, 16, ConvOptions::square(1, {.stride = 2, .bias = false}))
      .add<BatchNorm2d>("1", 16);
  auto net = std::make_unique<Sequential>();
  net->add<Conv2d>("conv1", 3, 8, conv3(1))
      .add<BatchNorm2d>("bn1", 8, BatchNormOptions{.activation = relu})
      .add<Residual>("block1", body(8, 8, 1), nullptr, ResidualOptions{.activation = relu})
      .add<Residual>("block2", body(8, 16, 2), std::move(down), ResidualOptions{.activation = relu})
      .add<GlobalPool>("pool", PoolKind::average)
      .add<Linear>("fc", 16, 10);
  return std::make_unique<Model>(ctx, "residual", std::move(net), Shape{12, 12, 3}, dtype, 3,
                                 compute);
}

}  // namespace dkfac::testing
