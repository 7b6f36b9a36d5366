#include "dkfac/nn/regularize.h"

#include "dkfac/core/error.h"
#include "dkfac/core/ops.h"
#include "dkfac/nn/loss.h"

#include "nn/backends/dtype.h"
#include "nn/backends/workspace.h"

namespace dkfac::nn {

void RegularizeOptions::validate() const {
  mixup.validate();
  erase.validate();
  DKFAC_CHECK(label_smoothing >= 0 && label_smoothing <= 1, "[regularize] label_smoothing is ",
              label_smoothing, "; it must be in [0, 1]");
}

namespace {

/// Regularizes a batch; fill(targets) writes the targets of the raw batch.
template <class Fill>
RegularizedBatch regularized(Context& ctx, const RegularizeOptions& options, SampleKey key,
                             std::int64_t global_batch, ConstTensorView images, std::int64_t labels,
                             std::int64_t classes, Regularizer& state, const Fill& fill) {
  options.validate();
  DKFAC_CHECK(classes > 0 && labels == images.dim(0), "[regularize] there are ", labels,
              " labels of ", classes, " classes for images ", images.shape(),
              "; there must be one per image and a class");
  const TensorView targets =
      view_in(ctx, state.targets, Shape{images.dim(0), classes}, compute_dtype(images.dtype()));
  fill(targets);
  RegularizedBatch out{images, targets};
  TensorView mixed;  // The mixed batch, in which inherited holes are made.
  if (options.mixup.any()) {
    VirtualBatch& batch = state.previous;
    running_mixup(ctx, options.mixup, key, global_batch, images, targets, batch);
    mixed = batch.images;
    out = {batch.images, batch.targets};
  }
  if (!options.erase.any()) return out;
  if (mixed.empty() || !options.inherit_holes) {
    mixed = view_in(ctx, state.images, images.shape(), images.dtype());
    ops::copy(ctx, out.images, mixed);
  }
  erase_holes(ctx, options.erase, key, mixed);
  out.images = mixed;
  return out;
}

}  // namespace

RegularizedBatch regularize(Context& ctx, const RegularizeOptions& options, SampleKey key,
                            std::int64_t global_batch, ConstTensorView images,
                            std::span<const std::int32_t> labels, std::int64_t classes,
                            Regularizer& state) {
  DKFAC_CHECK(!ctx.device().is_cuda(), "[regularize] the labels are on the host, the context on ",
              ctx.device(), "; pass the labels of the device");
  return regularized(
      ctx, options, key, global_batch, images, std::ssize(labels), classes, state,
      [&](TensorView targets) { soft_targets(labels, options.label_smoothing, targets); });
}

RegularizedBatch regularize(Context& ctx, const RegularizeOptions& options, SampleKey key,
                            std::int64_t global_batch, ConstTensorView images,
                            ConstTensorView labels, std::int64_t classes, Regularizer& state) {
  return regularized(
      ctx, options, key, global_batch, images, labels.numel(), classes, state,
      [&](TensorView targets) { soft_targets(ctx, labels, options.label_smoothing, targets); });
}

}  // namespace dkfac::nn
