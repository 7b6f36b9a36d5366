#pragma once

#include <cstddef>
#include <cstdint>

#include "dkfac/data/augment.h"

#include "core/shared/cuda/device_code.h"
#include "core/shared/cuda/index.h"
#include "core/shared/pack.h"
#include "data/augment_choice.h"
#include "data/mean_values.h"

namespace dkfac::data::cuda {

using dkfac::cuda::are_aligned;
using dkfac::cuda::as_packs;
using dkfac::cuda::FullPack;
using dkfac::cuda::kPack;
using dkfac::cuda::packs_of;

/// Functor that computes pack p of image `row` of a batch: crop, flip, cutout, normalisation and
/// rounding in one pass over the 8-bit images. Values come from a table, so they are bit-identical
/// to the host's.
template <class T>
struct MakeImages {
  const std::uint8_t* pixels;
  const T* table;       ///< [256,c]
  const Wide<T>* mean;  ///< [h,w,c], or null: there is no mean image.
  const std::int32_t* all_labels;
  const std::int32_t* order;    ///< Order of the epoch, starting at the batch's first sample.
  const std::int32_t* changes;  ///< [count,5], or null: drawn from the sample's key.
  AugmentOptions options;
  bool augmented;
  std::uint64_t seed;
  std::int64_t epoch;
  std::int64_t height, width, channels;
  T* images;
  std::int32_t* labels;
  bool aligned;  ///< Every image begins at a multiple of the pack size.

  [[nodiscard]] DKFAC_HD std::int64_t image_size() const { return height * width * channels; }
  [[nodiscard]] DKFAC_HD std::int64_t packs() const { return packs_of<T>(image_size()); }

  [[nodiscard]] DKFAC_HD Augmentation change_of(std::int64_t sample) const {
    if (!augmented) return {};
    if (changes == nullptr) return chosen_augmentation(options, height, width, seed, epoch, sample);
    const std::int32_t* c = changes + 5 * sample;
    Augmentation out;
    out.dy = c[0];
    out.dx = c[1];
    out.flip = c[2] != 0;
    out.cut_y = c[3];
    out.cut_x = c[4];
    return out;
  }

  /// Returns the offset in the source image of output pixel (y, x); -1 if the output is zero.
  [[nodiscard]] DKFAC_HD std::int64_t pixel_of(const Augmentation& change, std::int64_t y,
                                               std::int64_t x) const {
    const bool cut = y >= change.cut_y && y < change.cut_y + options.cutout && x >= change.cut_x &&
                     x < change.cut_x + options.cutout;
    const std::int64_t from_y = y + change.dy;
    const std::int64_t from_x = (change.flip ? width - 1 - x : x) + change.dx;
    const bool outside = from_y < 0 || from_y >= height || from_x < 0 || from_x >= width;
    if (cut || (outside && options.pad_mode == PadMode::zero)) return -1;
    return (reflected(from_y, height) * width + reflected(from_x, width)) * channels;
  }

  /// Returns the normalised value of a pixel of channel c at element `at` of the image.
  [[nodiscard]] DKFAC_HD T value_of(std::uint8_t pixel, std::int64_t c, std::int64_t at) const {
    return mean == nullptr ? table[pixel * channels + c] : centred<T>(pixel, mean[at]);
  }

  DKFAC_HD void operator()(std::int64_t row, std::int64_t p) const {
    constexpr auto kWidth = static_cast<std::int64_t>(kPack<T>);
    const std::int64_t sample = order[row], first = p * kWidth;
    if (p == 0) labels[row] = all_labels[sample];
    const Augmentation change = change_of(sample);
    const std::uint8_t* image = pixels + sample * image_size();
    const std::int64_t line = width * channels;
    std::int64_t y = dkfac::cuda::quotient(first, line);
    std::int64_t x = dkfac::cuda::quotient(first - y * line, channels);
    std::int64_t c = first - y * line - x * channels;
    const std::int64_t left = image_size() - first;
    const std::int64_t count = left < kWidth ? left : kWidth;
    FullPack<T> out{};
    std::int64_t pixel = pixel_of(change, y, x);
    for (std::int64_t k = 0; k < kWidth; ++k) {
      if (k >= count) break;
      out.at[static_cast<std::size_t>(k)] =
          pixel < 0 ? T{} : value_of(image[pixel + c], c, first + k);
      if (++c < channels) continue;
      c = 0;
      if (++x == width) {
        x = 0;
        ++y;
      }
      if (k + 1 < count) pixel = pixel_of(change, y, x);
    }
    T* to = images + row * image_size() + first;
    if (aligned && count == kWidth) {
      *as_packs<FullPack<T>>(to) = out;
      return;
    }
    for (std::int64_t k = 0; k < count; ++k) to[k] = out.at[static_cast<std::size_t>(k)];
  }
};

}  // namespace dkfac::data::cuda
