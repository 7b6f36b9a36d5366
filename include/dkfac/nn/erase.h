#pragma once

#include <cstdint>

#include "dkfac/core/context.h"
#include "dkfac/core/random.h"
#include "dkfac/core/tensor_view.h"
#include "dkfac/core/types.h"

namespace dkfac::nn {

/// Random erasing (Zhong et al. 2020) with zeros, which are the mean colour after normalisation;
/// the ranges of SP-NGD, section 6.1.
struct EraseOptions {
  double probability = 0;                   ///< Probability of a hole in an image. 0: off.
  double min_area = 0.02, max_area = 0.25;  ///< Bounds of the hole's area as a fraction of the
                                            ///< image's, which is uniform between them.
  double min_aspect = 0.3, max_aspect = 1;  ///< Bounds of height over width (or, in half of the
                                            ///< holes at random, of width over height); uniform.

  [[nodiscard]] bool any() const { return probability > 0; }
  void validate() const;  ///< Throws InvalidArgument naming the field.
};

/// Rows [y, y + height) and columns [x, x + width) of an image; no hole when height is 0.
struct Hole {
  std::int64_t y = 0, x = 0, height = 0, width = 0;
  bool operator==(const Hole&) const = default;
};

/// Draws the hole in sample i of a batch of images [h,w,c]; a function of its arguments alone.
/// Sides are rounded to whole pixels and cut to the image. The position is uniform among those
/// where the hole lies inside the image. Throws InvalidArgument for invalid options or keys, and
/// for an image without pixels.
[[nodiscard]] Hole sample_hole(const EraseOptions& options, const Shape& image, SampleKey key,
                               std::int64_t i);

/// Erases the holes of a batch [n,h,w,c] in place, on any device. dtype: f64, f32, bf16 or f16.
void erase_holes(Context& ctx, const EraseOptions& options, SampleKey key, TensorView images);

}  // namespace dkfac::nn
