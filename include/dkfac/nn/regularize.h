#pragma once

#include <cstdint>
#include <span>

#include "dkfac/core/context.h"
#include "dkfac/core/tensor.h"
#include "dkfac/nn/erase.h"
#include "dkfac/nn/mixup.h"

namespace dkfac::nn {

/// Options of the regularization of a batch between the loader and the network.
struct RegularizeOptions {
  MixupOptions mixup = {};
  EraseOptions erase = {};
  /// Images are erased after mixing. True: in place, so that holes carry over into the next virtual
  /// batch, as in the SP-NGD authors' code; false: in a copy.
  bool inherit_holes = false;
  double label_smoothing = 0;  ///< Label smoothing of the targets.

  [[nodiscard]] bool any() const { return mixup.any() || erase.any(); }
  void validate() const;  ///< Throws InvalidArgument naming the field.
};

/// State and memory of regularize(). Only `previous` is kept from step to step.
struct Regularizer {
  VirtualBatch previous;
  Tensor images, targets;
};

/// Result of regularize(); valid until the next call.
struct RegularizedBatch {
  ConstTensorView images;   ///< dtype of the given images.
  ConstTensorView targets;  ///< [n, classes] f32, f64 for images in f64: for the loss.
};

/// Applies mixup and then erasing to this rank's part of a global batch; options that are off are
/// skipped. The images are the same at every rank count. Call it once for a rank's whole batch,
/// before it is cut into micro-batches.
[[nodiscard]] RegularizedBatch regularize(Context& ctx, const RegularizeOptions& options,
                                          SampleKey key, std::int64_t global_batch,
                                          ConstTensorView images,
                                          std::span<const std::int32_t> labels,
                                          std::int64_t classes, Regularizer& state);
/// Regularizes on any device, without a host synchronization: images, and labels i32 [n], there. A
/// label that is not in [0, classes) makes its targets NaN.
[[nodiscard]] RegularizedBatch regularize(Context& ctx, const RegularizeOptions& options,
                                          SampleKey key, std::int64_t global_batch,
                                          ConstTensorView images, ConstTensorView labels,
                                          std::int64_t classes, Regularizer& state);

/// flipped[n,h,w,c] = every image with left and right exchanged, on the device of ctx; not in
/// place. dtype: f64, f32, bf16 or f16.
void flip_horizontal(Context& ctx, ConstTensorView images, TensorView flipped);

}  // namespace dkfac::nn
