#include "dkfac/core/error.h"
#include "dkfac/nn/regularize.h"

#include "nn/backends/backend_elementwise.h"

namespace dkfac::nn {

void flip_horizontal(Context& ctx, ConstTensorView images, TensorView flipped) {
  DKFAC_CHECK(
      images.ndim() == 4 && flipped.shape() == images.shape() && flipped.dtype() == images.dtype(),
      "[flip_horizontal] takes two tensors [n,h,w,c] of one type, not ", images.dtype(), " ",
      images.shape(), " and ", flipped.dtype(), " ", flipped.shape(),
      "; flat data has no mirror image");
  DKFAC_CHECK(images.device() == ctx.device() && flipped.device() == ctx.device() &&
                  images.is_contiguous() && flipped.is_contiguous(),
              "[flip_horizontal] the images are on ", images.device(), " and ", flipped.device(),
              "; they must be on ", ctx.device(), ", without gaps");
  DKFAC_CHECK(images.dtype() != DType::i32, "[flip_horizontal] the images are ", images.dtype(),
              "; they must be f64, f32, bf16 or f16");
  if (images.numel() > 0) kernels::flip_horizontal(ctx, images, flipped);
}

}  // namespace dkfac::nn
