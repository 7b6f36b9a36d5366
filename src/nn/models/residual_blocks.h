#pragma once

#include "nn/models/models.h"

/// Residual blocks of He et al. 2016 with fused BatchNorm and activation; tensors have
/// torchvision's names: "conv1", "bn1", "conv2", ..., "downsample.0", "downsample.1".
namespace dkfac::nn {

/// How a shortcut changes the input to the shape of a block's output.
enum class Shortcut : std::uint8_t {
  pad,         ///< PadShortcut, option A.
  projection,  ///< 1x1 convolution and BatchNorm, option B.
  pooled       ///< As projection, but with an average over 2x2 pixels before it in place of the
               ///< stride.
};

/// Channels and stride of one block.
struct BlockShape {
  std::int64_t in = 0;
  std::int64_t width = 0;  ///< Channels of the 3x3 convolutions.
  int stride = 1;
};

/// Makes a block of two 3x3 convolutions, the first with the stride; its output has `width`
/// channels.
[[nodiscard]] std::unique_ptr<Layer> basic_block(const BlockShape& shape, Shortcut shortcut,
                                                 const ModelOptions& options);
/// Makes a block of 1x1, 3x3 with the stride, and 1x1; its output has kExpansion * width channels.
inline constexpr std::int64_t kExpansion = 4;
[[nodiscard]] std::unique_ptr<Layer> bottleneck_block(const BlockShape& shape, Shortcut shortcut,
                                                      const ModelOptions& options);

}  // namespace dkfac::nn
