#include "dkfac/nn/regularize.h"

#include "dkfac/core/error.h"
#include "dkfac/core/ops.h"
#include "dkfac/nn/loss.h"

#include "nn/dtype.h"
#include "nn/workspace.h"

namespace dkfac::nn {

void RegularizeOptions::validate() const {
  mixup.validate();
  erase.validate();
  DKFAC_CHECK(label_smoothing >= 0 && label_smoothing <= 1, "[regularize] label_smoothing is ",
              label_smoothing, "; it must be in [0, 1]");
}

RegularizedBatch regularize(Context& ctx, const RegularizeOptions& options, SampleKey key,
                            std::int64_t global_batch, ConstTensorView images,
                            std::span<const std::int32_t> labels, std::int64_t classes,
                            Regularizer& state) {
  options.validate();
  DKFAC_CHECK(classes > 0 && std::ssize(labels) == images.dim(0), "[regularize] there are ",
              labels.size(), " labels of ", classes, " classes for images ", images.shape(),
              "; there must be one per image and a class");
  const TensorView targets =
      view_in(ctx, state.targets, Shape{images.dim(0), classes}, compute_dtype(images.dtype()));
  soft_targets(labels, options.label_smoothing, targets);
  RegularizedBatch out{images, targets};
  TensorView mixed;  // Where holes may be made that are inherited.
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
  erase_holes(options.erase, key, mixed);
  out.images = mixed;
  return out;
}

}  // namespace dkfac::nn
