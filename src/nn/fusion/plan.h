#pragma once

#include <cstdint>

#include "dkfac/nn/layers.h"
#include "dkfac/nn/model.h"

/// Which neighbouring layers share a pass over memory.
namespace dkfac::nn {

/// What a Conv2d can do for a BatchNorm2d of one group beside it in the passes of 16-bit
/// activations on a device for which cuDNN has an engine. All other passes stay as they are.
enum class Fusion : std::uint8_t {
  /// A convolution without a bias sums what it computes for a normalisation that comes next in the
  /// same Sequential.
  moments,
  /// A convolution carries the gradient of its input through the ReLU of a normalisation that comes
  /// directly before, also as the end and the beginning of neighbouring Sequentials, and sums it.
  gradient
};

/// From now on, or no longer, for all such neighbours that there are below `root`, which keep each
/// other's addresses while it is on.
void fuse(Layer& root, Fusion what, bool on);
[[nodiscard]] FusedPairs fused_pairs(Layer& root, Fusion what);

/// The layer that can do the sum of a residual block with this body, and the activation behind it:
/// the last of the body, a BatchNorm2d without an activation of its own; null where there is none.
[[nodiscard]] BatchNorm2d* summing_norm(Layer& body);

}  // namespace dkfac::nn
