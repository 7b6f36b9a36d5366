#pragma once

#include <cstdint>
#include <vector>

#include "dkfac/core/half.h"
#include "dkfac/data/augment.h"
#include "dkfac/data/dataset.h"

namespace dkfac::data {

/// [256,c]: the normalised value of a pixel value; 16 bits are those of f32, rounded.
template <class T>
[[nodiscard]] std::vector<T> value_table(const Normalization& normalization);

/// Normalises 8-bit images of one shape into T, augmented on the way: one pass, no copy.
template <class T>
class ImageWriter {
 public:
  ImageWriter(const Normalization& normalization, const Shape& image,
              const AugmentOptions& options);

  /// out[n,c] = (pixel / 255 - mean) / stddev, of any number of pixels.
  void write(const std::uint8_t* pixels, std::int64_t n, T* out) const;
  void write(const std::uint8_t* pixels, const Augmentation& change, T* out) const;

 private:
  void write_row(const std::uint8_t* row, const Augmentation& change, T* out) const;
  void write_pixel(const std::uint8_t* pixel, T* out) const;
  void write_border(const std::uint8_t* row, std::int64_t from, T* out) const;

  std::int64_t height_, width_, channels_;
  AugmentOptions options_;
  std::vector<T> table_;
};

extern template class ImageWriter<double>;
extern template class ImageWriter<float>;
extern template class ImageWriter<bf16>;
extern template class ImageWriter<f16>;

}  // namespace dkfac::data
