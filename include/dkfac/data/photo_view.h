#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dkfac/data/image.h"

namespace dkfac::data {

/// What a network sees of a photograph: `from` is resized to [height,width], of which `window` is
/// cut out, and mirrored when `flip`. All choices are pure functions of their arguments
/// (counter-based, Philox), so equal at every rank count, batch size and after a restart.
struct PhotoView {
  Box from;
  std::int64_t height = 0, width = 0;
  Box window;
  bool flip = false;
};

/// Which numbers are drawn: sample `sample` of the data set in epoch 0 <= `epoch` < 2^32.
struct PhotoKey {
  std::uint64_t seed = 1;
  std::int64_t epoch = 0, sample = 0;
};

/// Szegedy et al. 2015 ("Inception"), with the distribution of torchvision's RandomResizedCrop: up
/// to 10 tries of an area uniform in [min_area, max_area] of the picture's and a ratio of width to
/// height whose logarithm is uniform; sides rounded, the place uniform. Without a fit the largest
/// box in the middle whose ratio is in range.
struct RandomCropOptions {
  double min_area = 0.08, max_area = 1;
  double min_aspect = 3.0 / 4, max_aspect = 4.0 / 3;
  void validate() const;  ///< Throws InvalidArgument naming the field.
};
[[nodiscard]] PhotoView random_resized_crop(const ImageSize& picture, std::int64_t size,
                                            const RandomCropOptions& options, const PhotoKey& key);

/// As Osawa et al. 2018 prepare images: the picture is resized to a square of `resized` pixels,
/// whatever its aspect, of which a square of `size` is cut out at random. size <= resized.
[[nodiscard]] PhotoView squashed_crop(const ImageSize& picture, std::int64_t resized,
                                      std::int64_t size, const PhotoKey& key);

/// For evaluation: the shorter side is resized to `shorter`, and [height,width] is cut out of the
/// middle (torchvision's Resize and CenterCrop, their rounding included). Where the resized picture
/// is smaller than that, it is made larger until it is not.
[[nodiscard]] PhotoView centre_crop(const ImageSize& picture, std::int64_t shorter,
                                    std::int64_t height, std::int64_t width);

/// Rectangular validation (fast.ai 2018): pictures in order of their aspect, in batches of which
/// each has a shape of its own, near the mean aspect of its pictures: the shorter side is `size`,
/// the longer one a multiple of 8, or `size` too. It is at most four times as long: of panoramas
/// the ends are cut away, and a batch needs no more memory than that.
struct AspectBatch {
  std::int64_t begin = 0, count = 0;  ///< Into RectangularOrder::samples.
  std::int64_t height = 0, width = 0;
};
struct RectangularOrder {
  std::vector<std::int64_t> samples;
  std::vector<AspectBatch> batches;
};
/// batch and size > 0; a batch is cut from the order, the last may be smaller.
[[nodiscard]] RectangularOrder rectangular_order(std::span<const ImageSize> pictures,
                                                 std::int64_t batch, std::int64_t size);

}  // namespace dkfac::data
