#include "dkfac/core/error.h"
#include "dkfac/nn/regularize.h"

#include "nn/backends/backend_elementwise.h"

namespace dkfac::nn {

void mirror(Context& ctx, ConstTensorView images, TensorView mirrored) {
  DKFAC_CHECK(images.ndim() == 4 && mirrored.shape() == images.shape() &&
                  mirrored.dtype() == images.dtype(),
              "[mirror] takes two tensors [n,h,w,c] of one type, not ", images.dtype(), " ",
              images.shape(), " and ", mirrored.dtype(), " ", mirrored.shape(),
              "; flat data has no mirror image");
  DKFAC_CHECK(images.device() == ctx.device() && mirrored.device() == ctx.device() &&
                  images.is_contiguous() && mirrored.is_contiguous(),
              "[mirror] the images are on ", images.device(), " and ", mirrored.device(),
              "; they must be on ", ctx.device(), ", without gaps");
  DKFAC_CHECK(images.dtype() != DType::i32, "[mirror] the images are ", images.dtype(),
              "; they must be f64, f32, bf16 or f16");
  if (images.numel() > 0) kernels::mirror(ctx, images, mirrored);
}

}  // namespace dkfac::nn
