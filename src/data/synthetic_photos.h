#pragma once

#include "dkfac/data/dataset.h"

namespace dkfac::data {

/// "synthetic-photos": source.synthetic_train and synthetic_test photographs of
/// source.synthetic_image[0] pixels in both directions, shown as those of files are. A few hundred
/// pictures out of synthetic_images() are there, and are used again and again, other ones in each
/// split; they are of the first ten classes at most.
[[nodiscard]] DataSplits make_synthetic_photos(const DataSource& source);
[[nodiscard]] double synthetic_photo_bytes(const DataSource& source);

/// Of synthetic_images(): images and labels, and the two patterns of each class.
[[nodiscard]] inline double synthetic_image_bytes(double images, double pixels, double classes) {
  return images * (pixels + sizeof(std::int32_t)) + classes * 2 * sizeof(double) * pixels;
}

}  // namespace dkfac::data
