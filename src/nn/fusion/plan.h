#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "dkfac/nn/layers.h"
#include "dkfac/nn/model.h"

#include "nn/shared/work_timer.h"

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

/// Sets the use of a fusion for all such neighbours in `root`. They keep each other's addresses
/// unless it is off. A measured one is not used before it is chosen.
void fuse(Layer& root, Fusion what, FusionUse use);
/// Returns the choices so far, "110/01": a digit for each pair in forward order, moments before
/// gradients; 1: fused.
[[nodiscard]] std::string fusion_choices(Layer& root);
/// Sets the choices of the measured pairs; the others keep theirs. Throws InvalidArgument for text
/// that is not of these pairs.
void set_fusion_choices(Layer& root, std::string_view choices);
/// Returns whether there are pairs whose use is measured.
[[nodiscard]] bool has_measured_fusions(Layer& root);

/// Scope in which the passes of `root` measure the forms of these pairs, by a timer that outlives
/// it, and choose.
class MeasuredFusions {
 public:
  MeasuredFusions(Layer& root, const WorkTimer& timer);
  ~MeasuredFusions();
  MeasuredFusions(const MeasuredFusions&) = delete;
  MeasuredFusions& operator=(const MeasuredFusions&) = delete;

 private:
  Layer& root_;
};

[[nodiscard]] FusedPairs fused_pairs(Layer& root, Fusion what);

/// Returns the layer that can compute the sum of a residual block with this body, and the
/// activation behind it. That is the last layer of the body if it is a BatchNorm2d without an
/// activation of its own; otherwise null.
[[nodiscard]] BatchNorm2d* summing_norm(Layer& body);

}  // namespace dkfac::nn
