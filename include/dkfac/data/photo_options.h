#pragma once

#include <cstdint>

#include "dkfac/data/photo_view.h"

namespace dkfac::data {

/// What is shown of a photograph. Mirroring is AugmentOptions' matter.
enum class PhotoCrop : std::uint8_t {
  random_resized,  ///< random_resized_crop()
  squashed,        ///< squashed_crop(): resized to a square of side `resized`.
  centre           ///< centre_crop(): the shorter side resized to `resized`.
};

/// What is done about a file that is no good photograph. One that cannot be read at all (it is
/// gone, the disk fails) always stops the run.
enum class BadPhoto : std::uint8_t {
  stop,  ///< DataError that names it.
  skip,  ///< The next good sample in the order of the epoch takes its place, label and all.
  grey   ///< An image of one grey, with its label.
};

struct PhotoOptions {
  PhotoCrop crop = PhotoCrop::random_resized;
  std::int64_t size = 224;     ///< Images are [size,size,3].
  std::int64_t resized = 256;  ///< See PhotoCrop.
  /// Centre crops only: samples in order of their aspect, in batches with shapes of their own
  /// (rectangular_order()) whose shorter side is `size`.
  bool rectangular = false;
  RandomCropOptions random;
  /// Decode at 1/2, 1/4 or 1/8 of the size where that is enough: faster, and pixels differ a little
  /// from those of a full decoding.
  bool scaled_decoding = false;
  int workers = 0;  ///< Threads that decode; 0: as many as cores, up to 16.
  BadPhoto bad = BadPhoto::skip;
  /// More bad ones than this share of a rank's samples of an epoch (rounded up) are a DataError.
  double bad_limit = 1e-3;

  [[nodiscard]] ImageSize shape() const { return {size, size}; }
  void validate() const;  ///< Throws InvalidArgument naming the field.
};

}  // namespace dkfac::data
