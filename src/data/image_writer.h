#pragma once

#include <cstdint>
#include <vector>

#include "dkfac/core/half.h"
#include "dkfac/data/augment.h"
#include "dkfac/data/dataset.h"

namespace dkfac::data {

/// Returns the table [256,c] of normalised pixel values; 16-bit types hold rounded f32 values.
template <class T>
[[nodiscard]] std::vector<T> value_table(const Normalization& normalization);

/// Normalises and augments 8-bit images of one shape into T in one pass, without a copy.
template <class T>
class ImageWriter {
 public:
  ImageWriter(const Normalization& normalization, const Shape& image,
              const AugmentOptions& options);

  /// Computes out[n,c] = (pixel / 255 - mean) / stddev for any number of pixels.
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
