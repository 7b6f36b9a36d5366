#pragma once

#include <cstdint>

#include "dkfac/core/context.h"
#include "dkfac/core/random.h"
#include "dkfac/core/tensor.h"
#include "dkfac/core/tensor_view.h"

namespace dkfac::nn {

/// Draws from the distribution Beta(a, b), a > 0, b > 0, as x / (x + y) of two Gamma variates
/// (Marsaglia and Tsang 2000), in logarithms, so that small a and b do not underflow.
[[nodiscard]] double sample_beta(Random& random, double a, double b);

/// Running mixup (SP-NGD, Osawa et al. 2020, section 6.2): each batch is mixed with the mixed batch
/// of the step before.
struct MixupOptions {
  double alpha = 0;  ///< lambda ~ Beta(alpha, alpha), one per sample. 0: off.
  /// lambda <- max(lambda, 1 - lambda), as the SP-NGD authors' code does: the new sample has the
  /// larger weight.
  bool favour_new = false;

  [[nodiscard]] bool any() const { return alpha > 0; }
  void validate() const;  ///< Throws InvalidArgument naming the field.
};

/// Draws lambda of sample i of the batch; a function of its arguments alone. Throws InvalidArgument
/// unless alpha > 0 and the key is valid.
[[nodiscard]] double mixup_weight(const MixupOptions& options, SampleKey key, std::int64_t i);

/// The mixed batch of the last step, which is state. A checkpoint keeps each rank's share of the
/// rows, which other numbers of ranks shard anew (StateKind::sharded). With global_batch = 0, used
/// where the images of a batch were not usable, the next step starts from its raw batch.
struct VirtualBatch {
  TensorView images;   ///< [n,h,w,c], of the dtype of the raw images; empty before the first step.
  TensorView targets;  ///< [n,classes]
  std::int64_t global_batch = 0, first = 0;  ///< Size of the batch it is a part of, and index of
                                             ///< its first sample there.

  Tensor image_memory, target_memory;  ///< Memory of the views; only grows.

  /// Makes the views, uninitialised, for reading a checkpoint.
  void prepare(Context& ctx, const Shape& images_shape, DType images_dtype,
               const Shape& targets_shape, DType targets_dtype);
};

/// xv(t) = lambda x(t) + (1 - lambda) xv(t-1), and likewise for the targets, per sample: SP-NGD eq.
/// 18-20. `batch` holds xv(t-1) on entry and xv(t) on return. The first batch is not mixed, nor is
/// one whose global size, share or shape differs from that of the batch before. images: [n,h,w,c],
/// f64, f32, bf16 or f16 (mixed in f32 and rounded); targets: [n,classes], f64 or f32; both on the
/// device of ctx, without a host synchronization. n may be 0.
void running_mixup(Context& ctx, const MixupOptions& options, SampleKey key,
                   std::int64_t global_batch, ConstTensorView images, ConstTensorView targets,
                   VirtualBatch& batch);

}  // namespace dkfac::nn
