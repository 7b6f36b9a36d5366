#pragma once

#include <cstddef>
#include <cstdint>

#include "core/shared/cuda/convert.h"
#include "core/shared/cuda/index.h"
#include "nn/backends/cuda/pack.h"
#include "nn/backends/dtype.h"
#include "nn/backends/sample_choice.h"

/// Functors of regularize.cu.
namespace dkfac::nn::cuda {

struct DrawWeight {
  MixupOptions options;
  SampleKey key;
  double* weights;
  DKFAC_HD void operator()(std::int64_t i) const { weights[i] = chosen_weight(options, key, i); }
};

/// Index processes pack p of sample `row`. `aligned`: every sample begins at a multiple of a pack.
template <class T>
struct MixSamples {
  using C = Computed<T>;
  static constexpr auto kWidth = static_cast<std::int64_t>(kPack<T>);
  const double* weights;
  const T* fresh;
  T* mixed;
  std::int64_t per_sample;
  bool aligned;

  DKFAC_HD static T mix(C w, T x, T y) {
    return rounded<T>(w * widened<C>(x) + (C{1} - w) * widened<C>(y));
  }
  DKFAC_HD void operator()(std::int64_t row, std::int64_t p) const {
    const C w = static_cast<C>(weights[row]);
    const T* x = fresh + row * per_sample;
    T* y = mixed + row * per_sample;
    const std::int64_t first = p * kWidth;
    if (aligned && first + kWidth <= per_sample) {
      const FullPack<T> in = as_packs<const FullPack<T>>(x)[p];
      FullPack<T> out = as_packs<const FullPack<T>>(y)[p];
      for (std::size_t k = 0; k < kPack<T>; ++k) out.at[k] = mix(w, in.at[k], out.at[k]);
      as_packs<FullPack<T>>(y)[p] = out;
      return;
    }
    for (std::int64_t k = first; k < per_sample && k < first + kWidth; ++k)
      y[k] = mix(w, x[k], y[k]);
  }
};

struct DrawHole {
  EraseOptions options;
  SampleKey key;
  std::int64_t height, width;
  Hole* holes;
  DKFAC_HD void operator()(std::int64_t i) const {
    holes[i] = chosen_hole(options, height, width, key, i);
  }
};

/// Processes element `at` of line `row` of all images; writes only inside the holes.
template <class T>
struct CutHoles {
  const Hole* holes;
  std::int64_t height, width, channels;
  T* images;
  DKFAC_HD void operator()(std::int64_t row, std::int64_t at) const {
    const std::int64_t i = dkfac::cuda::quotient(row, height), y = row - i * height;
    const Hole hole = holes[i];
    if (y < hole.y || y >= hole.y + hole.height || at < hole.x * channels ||
        at >= (hole.x + hole.width) * channels)
      return;
    images[row * width * channels + at] = T{};
  }
};

}  // namespace dkfac::nn::cuda
