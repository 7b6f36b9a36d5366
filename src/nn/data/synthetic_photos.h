#pragma once

#include "dkfac/nn/data.h"

namespace dkfac::nn {

/// "synthetic-photos": source.synthetic_train and synthetic_test photographs of
/// source.synthetic_image[0] pixels in both directions, shown as those of files are. A few hundred
/// pictures out of synthetic_images() are there, and are used again and again, other ones in each
/// split; they are of the first ten classes at most.
[[nodiscard]] DataSplits make_synthetic_photos(const DataSource& source);

}  // namespace dkfac::nn
