#include "data/image_writer.h"

#include <algorithm>

#include "core/shared/element.h"
#include "data/augment_choice.h"

namespace dkfac::data {
template <class T>
std::vector<T> value_table(const Normalization& normalization) {
  std::vector<T> table;
  for (int p = 0; p < 256; ++p) {
    for (std::size_t c = 0; c < normalization.mean.size(); ++c) {
      const double value = (p / 255.0 - normalization.mean[c]) / normalization.stddev[c];
      table.push_back(element::store<T>(static_cast<Wide<T>>(value)));
    }
  }
  return table;
}

template <class T>
ImageWriter<T>::ImageWriter(const Normalization& normalization, const Shape& image,
                            const AugmentOptions& options)
    : height_(image[0]),
      width_(image[1]),
      channels_(image[2]),
      options_(options),
      table_(value_table<T>(normalization)),
      mean_(mean_values<Wide<T>>(normalization, image)) {}

template <class T>
void ImageWriter<T>::write(const std::uint8_t* pixels, std::int64_t n, T* out) const {
  if (!mean_.empty()) {
    for (std::int64_t i = 0; i < n * channels_; ++i) out[i] = centred<T>(pixels[i], mean()[i]);
    return;
  }
  if (channels_ == 1) {
    for (std::int64_t i = 0; i < n; ++i) out[i] = table_[pixels[i]];
    return;
  }
  for (std::int64_t i = 0; i < n; ++i)
    write_pixel(pixels + i * channels_, nullptr, out + i * channels_);
}

template <class T>
void ImageWriter<T>::write(const std::uint8_t* pixels, const Augmentation& change, T* out) const {
  const std::int64_t row_size = width_ * channels_;
  for (std::int64_t y = 0; y < height_; ++y) {
    const std::int64_t from = y + change.dy;
    T* row = out + y * row_size;
    if (options_.pad_mode == PadMode::zero && (from < 0 || from >= height_)) {
      std::fill_n(row, row_size, T{});
    } else {
      write_row(pixels + reflected(from, height_) * row_size, change, mean_at(mean(), y * width_),
                row);
    }
  }
  for (std::int64_t y = change.cut_y; y < change.cut_y + options_.cutout; ++y) {
    std::fill_n(out + y * row_size + change.cut_x * channels_, options_.cutout * channels_, T{});
  }
}

template <class T>
void ImageWriter<T>::write_row(const std::uint8_t* row, const Augmentation& change,
                               const Wide<T>* mean, T* out) const {
  // Output x in [first, last) reads inside the row, the rest reads the padding.
  const std::int64_t shift = change.flip ? -change.dx : change.dx;
  const std::int64_t first = std::max<std::int64_t>(0, -shift);
  const std::int64_t last = std::min(width_, width_ - shift);
  const std::int64_t stride = change.flip ? -1 : 1;
  std::int64_t from = (change.flip ? width_ - 1 : 0) + change.dx;
  for (std::int64_t x = 0; x < first; ++x, from += stride) {
    write_border(row, from, mean_at(mean, x), out + x * channels_);
  }
  for (std::int64_t x = first; x < last; ++x, from += stride) {
    write_pixel(row + from * channels_, mean_at(mean, x), out + x * channels_);
  }
  for (std::int64_t x = last; x < width_; ++x, from += stride) {
    write_border(row, from, mean_at(mean, x), out + x * channels_);
  }
}

template <class T>
void ImageWriter<T>::write_pixel(const std::uint8_t* pixel, const Wide<T>* mean, T* out) const {
  if (mean != nullptr) {
    for (std::int64_t c = 0; c < channels_; ++c) out[c] = centred<T>(pixel[c], mean[c]);
    return;
  }
  if (channels_ == 3) {  // The compiler unrolls a constant trip count.
    for (std::size_t c = 0; c < 3; ++c) out[c] = table_[pixel[c] * std::size_t{3} + c];
    return;
  }
  const auto channels = static_cast<std::size_t>(channels_);
  for (std::size_t c = 0; c < channels; ++c) out[c] = table_[pixel[c] * channels + c];
}

template <class T>
void ImageWriter<T>::write_border(const std::uint8_t* row, std::int64_t from, const Wide<T>* mean,
                                  T* out) const {
  if (options_.pad_mode == PadMode::zero) {
    std::fill_n(out, channels_, T{});
  } else {
    write_pixel(row + reflected(from, width_) * channels_, mean, out);
  }
}

template std::vector<double> value_table(const Normalization&);
template std::vector<float> value_table(const Normalization&);
template std::vector<bf16> value_table(const Normalization&);
template std::vector<f16> value_table(const Normalization&);
template class ImageWriter<double>;
template class ImageWriter<float>;
template class ImageWriter<bf16>;
template class ImageWriter<f16>;

}  // namespace dkfac::data
