#include "dkfac/nn/mixup.h"

#include <cmath>

#include "dkfac/core/error.h"
#include "dkfac/core/ops.h"

#include "nn/backends/backend_regularize.h"
#include "nn/backends/sample_choice.h"
#include "nn/backends/workspace.h"

namespace dkfac::nn {
namespace {

void check_batch(const Context& ctx, const char* what, ConstTensorView x) {
  DKFAC_CHECK(x.ndim() >= 2 && x.is_contiguous() && x.device() == ctx.device(),
              "[running_mixup] the ", what, " are ", x.shape(), " on ", x.device(),
              "; they must be [n, ...] without gaps, on ", ctx.device());
}

bool alike(ConstTensorView a, ConstTensorView b) {
  return !a.empty() && a.shape() == b.shape() && a.dtype() == b.dtype();
}

void mix(Context& ctx, ConstTensorView weights, ConstTensorView fresh, TensorView mixed) {
  if (fresh.numel() == 0) return;
  kernels::mix_samples(ctx, weights, fresh, mixed);
}

}  // namespace

double sample_beta(Random& random, double a, double b) {
  DKFAC_CHECK(a > 0 && b > 0 && std::isfinite(a) && std::isfinite(b), "[sample_beta] a is ", a,
              " and b ", b, "; both must be > 0");
  return beta_of(random, a, b);
}

void MixupOptions::validate() const {
  DKFAC_CHECK(alpha >= 0 && std::isfinite(alpha), "[mixup] alpha is ", alpha,
              "; it must be >= 0, where 0 is off");
}

double mixup_weight(const MixupOptions& options, SampleKey key, std::int64_t i) {
  options.validate();
  DKFAC_CHECK(options.any(), "[mixup_weight] alpha is 0; there is nothing to draw");
  check_key("mixup_weight", key);
  return chosen_weight(options, key, i);
}

void VirtualBatch::prepare(Context& ctx, const Shape& images_shape, DType images_dtype,
                           const Shape& targets_shape, DType targets_dtype) {
  images = view_in(ctx, image_memory, images_shape, images_dtype);
  targets = view_in(ctx, target_memory, targets_shape, targets_dtype);
}

void running_mixup(Context& ctx, const MixupOptions& options, SampleKey key,
                   std::int64_t global_batch, ConstTensorView images, ConstTensorView targets,
                   VirtualBatch& batch) {
  options.validate();
  DKFAC_CHECK(options.any(), "[running_mixup] alpha is 0; leave the batch as it is");
  check_key("running_mixup", key);
  check_batch(ctx, "images", images);
  check_batch(ctx, "targets", targets);
  const std::int64_t n = images.dim(0);
  DKFAC_CHECK(targets.dim(0) == n && global_batch > 0 && key.first + n <= global_batch,
              "[running_mixup] there are ", n, " images from place ", key.first,
              " of a global batch of ", global_batch, ", and ", targets.dim(0),
              " targets; there must be one per image, and the images lie inside the batch");
  const bool goes_on = batch.global_batch == global_batch && batch.first == key.first &&
                       alike(batch.images, images) && alike(batch.targets, targets);
  if (!goes_on) {
    batch.prepare(ctx, images.shape(), images.dtype(), targets.shape(), targets.dtype());
    ops::copy(ctx, images, batch.images);
    ops::copy(ctx, targets, batch.targets);
    batch.global_batch = global_batch;
    batch.first = key.first;
    return;
  }
  if (n == 0) return;
  Scratch scratch(ctx);
  const TensorView weights = scratch.take(Shape{n}, DType::f64);
  kernels::mixup_weights(ctx, options, key, weights);
  mix(ctx, weights, images, batch.images);
  mix(ctx, weights, targets, batch.targets);
}

}  // namespace dkfac::nn
