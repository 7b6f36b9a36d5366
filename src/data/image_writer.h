#pragma once

#include <cstdint>
#include <vector>

#include "dkfac/core/half.h"
#include "dkfac/data/augment.h"
#include "dkfac/data/dataset.h"

#include "data/mean_values.h"

namespace dkfac::data {

/// Returns the table [256,c] of normalised pixel values; 16-bit types hold rounded f32 values.
template <class T>
[[nodiscard]] std::vector<T> value_table(const Normalization& normalization);

/// Normalises and augments 8-bit images of one shape into T in one pass, without a copy.
template <class T>
class ImageWriter {
 public:
  /// Throws InvalidArgument for a mean image that does not fit.
  ImageWriter(const Normalization& normalization, const Shape& image,
              const AugmentOptions& options);

  /// Computes out[n,c] = (pixel / 255 - mean) / stddev for any number of pixels, with a mean image
  /// those of an image from its first pixel on.
  void write(const std::uint8_t* pixels, std::int64_t n, T* out) const;
  void write(const std::uint8_t* pixels, const Augmentation& change, T* out) const;

 private:
  // `mean` is that of the first pixel that is written; null: there is no mean image.
  void write_row(const std::uint8_t* row, const Augmentation& change, const Wide<T>* mean,
                 T* out) const;
  void write_pixel(const std::uint8_t* pixel, const Wide<T>* mean, T* out) const;
  void write_border(const std::uint8_t* row, std::int64_t from, const Wide<T>* mean, T* out) const;
  /// Returns `mean` advanced by whole pixels.
  [[nodiscard]] const Wide<T>* mean_at(const Wide<T>* mean, std::int64_t pixels) const {
    return mean == nullptr ? nullptr : mean + pixels * channels_;
  }
  [[nodiscard]] const Wide<T>* mean() const { return mean_.empty() ? nullptr : mean_.data(); }

  std::int64_t height_, width_, channels_;
  AugmentOptions options_;
  std::vector<T> table_;
  std::vector<Wide<T>> mean_;  ///< [h,w,c]; empty: there is no mean image.
};

extern template class ImageWriter<double>;
extern template class ImageWriter<float>;
extern template class ImageWriter<bf16>;
extern template class ImageWriter<f16>;

}  // namespace dkfac::data
