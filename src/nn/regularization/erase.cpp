#include "dkfac/nn/erase.h"

#include <cmath>

#include "dkfac/core/error.h"

#include "nn/backends/backend_regularize.h"
#include "nn/backends/sample_choice.h"

namespace dkfac::nn {

void EraseOptions::validate() const {
  DKFAC_CHECK(probability >= 0 && probability <= 1, "[erase] probability is ", probability,
              "; it must be in [0, 1]");
  DKFAC_CHECK(min_area > 0 && min_area <= max_area && max_area <= 1, "[erase] areas are from ",
              min_area, " to ", max_area, "; they must be in (0, 1], in this order");
  DKFAC_CHECK(min_aspect > 0 && min_aspect <= max_aspect && std::isfinite(max_aspect),
              "[erase] aspects are from ", min_aspect, " to ", max_aspect,
              "; they must be > 0, in this order");
}

Hole sample_hole(const EraseOptions& options, const Shape& image, SampleKey key, std::int64_t i) {
  options.validate();
  check_key("sample_hole", key);
  DKFAC_CHECK(image.ndim() == 3 && image[0] > 0 && image[1] > 0, "[sample_hole] the image is ",
              image, "; it must be [h, w, c] with pixels");
  return chosen_hole(options, image[0], image[1], key, i);
}

void erase_holes(Context& ctx, const EraseOptions& options, SampleKey key, TensorView images) {
  options.validate();
  check_key("erase", key);
  DKFAC_CHECK(images.ndim() == 4 && images.is_contiguous() && images.device() == ctx.device(),
              "[erase] the images are ", images.shape(), " on ", images.device(),
              "; they must be [n, h, w, c] without gaps, on ", ctx.device());
  if (images.numel() == 0) return;
  kernels::cut_holes(ctx, options, key, images);
}

}  // namespace dkfac::nn
