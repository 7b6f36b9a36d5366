#pragma once

#include <cstdint>
#include <type_traits>
#include <vector>

#include "dkfac/data/dataset.h"

#include "core/shared/element.h"

namespace dkfac::data {

/// Type in which T is normalised before it is rounded.
template <class T>
using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// Normalises a pixel value with that of the mean image at its place: the same on host and device,
/// as a quotient and a difference cannot be contracted.
template <class T>
[[nodiscard]] DKFAC_HD inline T centred(std::uint8_t pixel, Wide<T> mean) {
  return element::store<T>(static_cast<Wide<T>>(pixel) / static_cast<Wide<T>>(255) - mean);
}

/// Returns the part of the mean image that images of this shape have, [h,w,c]; empty without one.
/// Throws InvalidArgument when it is smaller, or has other channels.
template <class W>
[[nodiscard]] std::vector<W> mean_values(const Normalization& normalization, const Shape& image);

extern template std::vector<double> mean_values(const Normalization&, const Shape&);
extern template std::vector<float> mean_values(const Normalization&, const Shape&);

}  // namespace dkfac::data
