#pragma once

#include <cstdint>
#include <vector>

#include "dkfac/data/dataset.h"

namespace dkfac::data {

/// Mean over pictures of each pixel / 255, [height,width,channels] row-major. Of a mean image that
/// is larger than the images, the upper left part is used, as in the code of Osawa et al.
struct MeanImage {
  std::int64_t height = 0, width = 0, channels = 0;
  std::vector<double> values{};
};

/// Mean image of a training set.
struct FoundMeanImage {
  MeanImage image;
  std::int64_t pictures = 0, bad = 0;  ///< Pictures in the mean, damaged photographs left out.
};

/// Computes the mean over the images of a data set; of photographs over all undamaged ones, each
/// resized as a whole to [size,size]. It sums integers, so the result is the same everywhere and
/// for any number of `workers`, which is as in PhotoOptions. Polls the communicators of the calling
/// thread. Throws InvalidArgument for an empty set or a size outside 1 to 4096, DataError when all
/// photographs are damaged, MissingInput and IoError when one cannot be read.
[[nodiscard]] FoundMeanImage find_mean_image(const Dataset& train, std::int64_t size = 256,
                                             int workers = 0);

/// Returns a 64-bit hash of shape and values.
[[nodiscard]] std::uint64_t fingerprint(const MeanImage& mean);

}  // namespace dkfac::data
