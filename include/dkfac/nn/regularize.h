#pragma once

#include <cstdint>
#include <span>

#include "dkfac/core/context.h"
#include "dkfac/core/tensor.h"
#include "dkfac/nn/erase.h"
#include "dkfac/nn/mixup.h"

namespace dkfac::nn {

/// What a batch goes through between the loader and the network.
struct RegularizeOptions {
  MixupOptions mixup = {};
  EraseOptions erase = {};
  /// Images are erased after they were mixed. True: in place, so that holes go on into the next
  /// virtual batch, as published code of SP-NGD has it; false: in a copy.
  bool inherit_holes = false;
  double label_smoothing = 0;  ///< Of the targets.

  [[nodiscard]] bool any() const { return mixup.any() || erase.any(); }
  void validate() const;  ///< Throws InvalidArgument naming the field.
};

/// State and memory of regularize(). Only `previous` outlives a step.
struct Regularizer {
  VirtualBatch previous;
  Tensor images, targets;
};

/// Valid until the next call.
struct RegularizedBatch {
  ConstTensorView images;   ///< Of the type of those given.
  ConstTensorView targets;  ///< [n, classes] f32, f64 for images in f64: for the loss.
};

/// Mixup, then erasing of this rank's part of a global batch; what is off is left out. The same
/// images at every rank count. A rank's batch goes through as a whole, before it is cut into
/// micro-batches.
[[nodiscard]] RegularizedBatch regularize(Context& ctx, const RegularizeOptions& options,
                                          SampleKey key, std::int64_t global_batch,
                                          ConstTensorView images,
                                          std::span<const std::int32_t> labels,
                                          std::int64_t classes, Regularizer& state);
/// The same on any device, without a host synchronization: images, and labels i32 [n], there. A
/// label that is not in [0, classes) makes its targets NaN.
[[nodiscard]] RegularizedBatch regularize(Context& ctx, const RegularizeOptions& options,
                                          SampleKey key, std::int64_t global_batch,
                                          ConstTensorView images, ConstTensorView labels,
                                          std::int64_t classes, Regularizer& state);

/// flipped[n,h,w,c] = every image with left and right exchanged, on the device of ctx; not in
/// place. f64, f32, bf16 or f16.
void flip_horizontal(Context& ctx, ConstTensorView images, TensorView flipped);

}  // namespace dkfac::nn
