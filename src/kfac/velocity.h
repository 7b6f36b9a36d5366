#pragma once

#include <vector>

#include "dkfac/core/tensor.h"

#include "kfac/parameters.h"

namespace dkfac::kfac {

/// Zero momentum buffers, one of [weight + bias elements] per layer.
inline std::vector<Tensor> make_velocity(Context& ctx, const std::vector<ParameterLayer>& layers,
                                         DType dtype) {
  std::vector<Tensor> velocity;
  for (const ParameterLayer& layer : layers)
    velocity.push_back(Tensor::zeros(ctx, {layer.numel()}, dtype));
  return velocity;
}

/// LARS scaling is for weights; gamma of a BatchNorm is not one.
inline bool adapts(const LayerSpec& spec) { return !std::holds_alternative<BatchNormSpec>(spec); }

}  // namespace dkfac::kfac
