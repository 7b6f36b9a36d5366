#pragma once

#include <cstdint>

#include "core/shared/cuda/convert.h"
#include "core/shared/cuda/device_code.h"
#include "core/shared/cuda/index.h"
#include "core/shared/element.h"
#include "nn/backends/cuda/pack.h"
#include "nn/backends/dtype.h"

/// Functors used beside cuDNN in convolutions.
namespace dkfac::nn::cuda {

/// y[j] += row[j mod c] over rows of c values: index i processes pack i of n elements. `aligned`:
/// are_aligned(y) and c is a multiple of a pack.
template <class T>
struct AddRow {
  static constexpr auto kWidth = static_cast<std::int64_t>(kPack<T>);
  const Computed<T>* row;
  std::int64_t c;
  T* y;
  std::int64_t n;
  bool aligned;

  DKFAC_HD void operator()(std::int64_t i) const {
    const std::int64_t begin = i * kWidth;
    if (aligned) {
      const std::int64_t first = begin - dkfac::cuda::quotient(begin, c) * c;
      FullPack<T> pack = as_packs<const FullPack<T>>(y)[i];
      for (std::int64_t k = 0; k < kWidth; ++k) pack.at[k] = sum(pack.at[k], row[first + k]);
      as_packs<FullPack<T>>(y)[i] = pack;
      return;
    }
    for (std::int64_t k = begin; k < n && k < begin + kWidth; ++k) y[k] = sum(y[k], row[k % c]);
  }
  DKFAC_HD static T sum(T value, Computed<T> addend) {
    return rounded<T>(widened<Computed<T>>(value) + addend);
  }
};

/// to[r,wide] = from[r,narrow] followed by zeros, of any 16-bit type; wide is a multiple of 4.
/// Index i processes 4 elements of `to`, which begins at a multiple of 8 bytes.
struct WidenChannels {
  static constexpr std::int64_t kWidth = 4;
  const std::uint16_t* from;
  std::int64_t narrow, wide;
  std::uint16_t* to;

  DKFAC_HD void operator()(std::int64_t i) const {
    const std::int64_t packs = wide / kWidth, r = dkfac::cuda::quotient(i, packs);
    const std::int64_t c = (i - r * packs) * kWidth;
    Pack<std::uint16_t, kWidth> pack{};
    for (std::int64_t k = 0; k < kWidth; ++k)
      if (c + k < narrow) pack.at[k] = from[r * narrow + c + k];
    as_packs<Pack<std::uint16_t, kWidth>>(to)[i] = pack;
  }
};

}  // namespace dkfac::nn::cuda
