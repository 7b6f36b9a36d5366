#pragma once

#include <cstdint>

#include "dkfac/nn/layers.h"
#include "dkfac/nn/model.h"

/// Fusion of neighbouring layers that can share a pass over memory.
namespace dkfac::nn {

/// Work that a Conv2d can do for a neighbouring BatchNorm2d of one group, in passes of 16-bit
/// activations on a device for which cuDNN has an engine. All other passes are unaffected.
enum class Fusion : std::uint8_t {
  /// A convolution without a bias sums its output for a normalisation directly after it in the same
  /// Sequential.
  moments,
  /// A convolution carries the gradient of its input through the ReLU of a normalisation directly
  /// before it, also across neighbouring Sequentials, and sums it.
  gradient
};

/// Switches a fusion on or off for all such neighbours in `root`. They keep each other's addresses
/// while it is on.
void fuse(Layer& root, Fusion what, bool on);
[[nodiscard]] FusedPairs fused_pairs(Layer& root, Fusion what);

/// Returns the layer that can compute the sum of a residual block with this body, and the
/// activation behind it. That is the last layer of the body if it is a BatchNorm2d without an
/// activation of its own; otherwise null.
[[nodiscard]] BatchNorm2d* summing_norm(Layer& body);

}  // namespace dkfac::nn
