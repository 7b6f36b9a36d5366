#pragma once

#include "dkfac/data/dataset.h"

namespace dkfac::data {

/// Generates "synthetic-photos": source.synthetic_train and synthetic_test photographs of
/// source.synthetic_image[0] pixels in both directions, with the views of photographs from files.
/// Each split repeats its own few hundred pictures of synthetic_images(), which are of at most the
/// first ten classes.
[[nodiscard]] DataSplits make_synthetic_photos(const DataSource& source);
[[nodiscard]] double synthetic_photo_bytes(const DataSource& source);

/// Returns the memory of synthetic_images() in bytes: images, labels and the two patterns of each
/// class.
[[nodiscard]] inline double synthetic_image_bytes(double images, double pixels, double classes) {
  return images * (pixels + sizeof(std::int32_t)) + classes * 2 * sizeof(double) * pixels;
}

}  // namespace dkfac::data
