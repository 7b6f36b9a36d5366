#pragma once

#include <cstdint>

#include "dkfac/core/context.h"
#include "dkfac/core/random.h"
#include "dkfac/core/tensor.h"
#include "dkfac/core/tensor_view.h"

namespace dkfac::nn {

/// A number of the distribution Beta(a, b), a > 0, b > 0, as x / (x + y) of two Gamma ones
/// (Marsaglia and Tsang 2000), in logarithms, so that small a and b do not underflow.
[[nodiscard]] double sample_beta(Random& random, double a, double b);

/// Running mixup (SP-NGD, Osawa et al. 2020, section 6.2): each batch is mixed with the mixed batch
/// of the step before.
struct MixupOptions {
  double alpha = 0;  ///< lambda ~ Beta(alpha, alpha), one per sample. 0: off.
  /// lambda <- max(lambda, 1 - lambda), as published code does: the new sample prevails.
  bool favour_new = false;

  [[nodiscard]] bool any() const { return alpha > 0; }
  void validate() const;  ///< Throws InvalidArgument naming the field.
};

/// lambda of sample i of the batch; a function of its arguments alone.
[[nodiscard]] double mixup_weight(const MixupOptions& options, SampleKey key, std::int64_t i);

/// The mixed batch of the last step: state. A checkpoint keeps each rank's share of the rows, which
/// other numbers of ranks share out anew (StateKind::sharded). With global_batch = 0, as where
/// nothing could be learnt from its images, the next step starts from its raw batch.
struct VirtualBatch {
  TensorView images;   ///< [n,h,w,c] of the type of the raw ones; empty before the first step.
  TensorView targets;  ///< [n,classes]
  std::int64_t global_batch = 0, first = 0;  ///< What it was a part of, and from where on.

  Tensor image_memory, target_memory;  ///< Of the views; they only grow.

  /// Makes the views, uninitialised, as a checkpoint needs them before it is read.
  void prepare(Context& ctx, const Shape& images_shape, DType images_dtype,
               const Shape& targets_shape, DType targets_dtype);
};

/// xv(t) = lambda x(t) + (1 - lambda) xv(t-1), and the same for the targets, per sample: SP-NGD eq.
/// 18-20. `batch` holds xv(t-1) and then xv(t). The first batch, and one whose global size, share
/// or shape is not that of the batch before, is taken as it is. images: [n,h,w,c], f64, f32, bf16
/// or f16 (mixed in f32 and rounded); targets: [n,classes], f64 or f32; both on the device of ctx,
/// without a host synchronization. n may be 0.
void running_mixup(Context& ctx, const MixupOptions& options, SampleKey key,
                   std::int64_t global_batch, ConstTensorView images, ConstTensorView targets,
                   VirtualBatch& batch);

}  // namespace dkfac::nn
