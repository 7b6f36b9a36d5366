#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "core/shared/cuda/convert.h"
#include "core/shared/cuda/index.h"
#include "nn/backends/cuda/channel_packs.h"
#include "nn/backends/cuda/columns.h"
#include "nn/backends/cuda/pack.h"
#include "nn/backends/dtype.h"
#include "nn/backends/pool_shape.h"

/// Elementwise operations (backend_elementwise.h) as kernels over packs or words.
namespace dkfac::nn::cuda {

/// to[j] = f(first[j]), or f(first[j], second[j]) for a binary f, in the computing type: index i
/// processes pack i of n elements. `to` may be one of the others. `aligned`: are_aligned() holds
/// for all of them.
template <class T, class F>
struct Map {
  using C = Computed<T>;
  static constexpr bool kTwo = std::is_invocable_v<F, C, C>;
  static constexpr auto kWidth = static_cast<std::int64_t>(kPack<T>);
  const T* first;
  const T* second;  ///< Null for a unary f.
  T* to;
  std::int64_t n;
  bool aligned;
  F f;

  DKFAC_HD void operator()(std::int64_t i) const {
    const std::int64_t begin = i * kWidth;
    if (aligned && begin + kWidth <= n) {
      const FullPack<T> x = as_packs<const FullPack<T>>(first)[i];
      FullPack<T> z = x, y;
      if constexpr (kTwo) z = as_packs<const FullPack<T>>(second)[i];
      for (std::size_t k = 0; k < kPack<T>; ++k) y.at[k] = value(x.at[k], z.at[k]);
      as_packs<FullPack<T>>(to)[i] = y;
      return;
    }
    for (std::int64_t k = begin; k < n && k < begin + kWidth; ++k) {
      const T x = first[k];
      T z = x;
      if constexpr (kTwo) z = second[k];
      to[k] = value(x, z);
    }
  }
  DKFAC_HD T value(T x, T z) const {
    if constexpr (kTwo) {
      return rounded<T>(f(widened<C>(x), widened<C>(z)));
    } else {
      return rounded<T>(f(widened<C>(x)));
    }
  }
};

struct Add {
  template <class C>
  DKFAC_HD C operator()(C x, C z) const {
    return x + z;
  }
};

template <class C>
struct Times {
  C factor;
  DKFAC_HD C operator()(C x) const { return x * factor; }
};

/// Value of an activation; Act: a functor of activate.h or smooth.h.
template <class Act, class C>
struct Activate {
  Act act;
  DKFAC_HD C operator()(C x) const { return act.value(x); }
};
template <class Act, class C>
struct ActivateBackward {
  Act act;
  DKFAC_HD C operator()(C y, C dy) const { return act.backward(y, dy); }
};

/// Act: a functor of smooth.h.
template <class Act, class C>
struct SmoothBackward {
  Act act;
  DKFAC_HD C operator()(C kept, C dy) const { return dy * act.derivative(kept); }
};

template <class C>
struct Mix {
  C weight;
  DKFAC_HD C operator()(C value, C average) const { return average + weight * (value - average); }
};

/// Index i exchanges words i.
template <class W>
struct BucketedReduce {
  W *a, *b;
  DKFAC_HD void operator()(std::int64_t i) const {
    const W kept = a[i];
    a[i] = b[i];
    b[i] = kept;
  }
};

/// y[r,:] = row: index i writes pack i of the n elements of y.
template <class T>
struct RepeatRow {
  static constexpr auto kWidth = static_cast<std::int64_t>(kPack<T>);
  const Computed<T>* row;
  std::int64_t width;
  T* y;
  std::int64_t n;
  bool aligned;

  DKFAC_HD void operator()(std::int64_t i) const {
    const std::int64_t begin = i * kWidth;
    std::int64_t column = begin - dkfac::cuda::quotient(begin, width) * width;
    FullPack<T> values;
    for (std::size_t k = 0; k < kPack<T>; ++k) {
      values.at[k] = rounded<T>(row[column]);
      column = column + 1 == width ? 0 : column + 1;
    }
    if (aligned && begin + kWidth <= n) {
      as_packs<FullPack<T>>(y)[i] = values;
      return;
    }
    for (std::int64_t k = 0; k < kWidth && begin + k < n; ++k)
      y[begin + k] = values.at[static_cast<std::size_t>(k)];
  }
};

/// Sums over a thread's rows of x[rows,channels], W channels at a time, in f64 (columns.cuh). W is
/// kPack<T>, or 1 where that does not divide the channels.
template <class T, std::size_t W>
struct ColumnSums {
  const T* x;
  std::int64_t channels;

  DKFAC_HD Sums<W> operator()(std::int64_t, std::int64_t pack, std::int64_t row,
                              std::int64_t stride, std::int64_t count) const {
    const T* from = x + row * channels + pack * kWidth<W>;
    Sums<W> sums{};
    each_pack<4, W>(from, stride * channels, count, [&](const Pack<T, W>& in, std::size_t) {
      for (std::size_t c = 0; c < W; ++c)
        sums.at[c] += static_cast<double>(widened<Computed<T>>(in.at[c]));
    });
    return sums;
  }
};
/// parts[chunk][channel]: sums of the blocks.
template <std::size_t W>
struct StoreParts {
  double* parts;
  std::int64_t channels;
  DKFAC_HD void operator()(std::int64_t, std::int64_t chunk, std::int64_t pack,
                           const Sums<W>& sums) const {
    double* to = parts + chunk * channels + pack * kWidth<W>;
    for (std::size_t c = 0; c < W; ++c) to[c] = sums.at[c];
  }
};
template <class C>
struct StoreSum {
  C* to;
  DKFAC_HD void operator()(std::int64_t, std::int64_t, std::int64_t channel,
                           const Sums<1>& sum) const {
    to[channel] = static_cast<C>(sum.at[0]);
  }
};

/// Returns the shape with words of `elements` channels in place of channels.
[[nodiscard]] inline PadShape in_words(PadShape s, std::int64_t elements) {
  s.c /= elements;
  s.small_c /= elements;
  s.before /= elements;
  return s;
}

/// Index i writes word i of the small map.
template <class W>
struct PadChannels {
  PadShape s;
  const W* large;
  W* small;
  DKFAC_HD void operator()(std::int64_t i) const {
    using dkfac::cuda::quotient;
    const std::int64_t pixel = quotient(i, s.small_c), c = i - pixel * s.small_c - s.before;
    if (c < 0 || c >= s.c) {
      small[i] = W{};
      return;
    }
    const std::int64_t line = quotient(pixel, s.small_w), col = pixel - line * s.small_w;
    const std::int64_t n = quotient(line, s.small_h), row = line - n * s.small_h;
    small[i] = large[((n * s.h + row * s.stride) * s.w + col * s.stride) * s.c + c];
  }
};

/// Index i writes word i of the large map.
template <class W>
struct PadChannelsBackward {
  PadShape s;
  const W* small;
  W* large;
  DKFAC_HD void operator()(std::int64_t i) const {
    using dkfac::cuda::quotient;
    const std::int64_t pixel = quotient(i, s.c), c = i - pixel * s.c;
    const std::int64_t line = quotient(pixel, s.w), col = pixel - line * s.w;
    const std::int64_t n = quotient(line, s.h), row = line - n * s.h;
    const std::int64_t y = quotient(row, s.stride), x = quotient(col, s.stride);
    large[i] = y * s.stride == row && x * s.stride == col
                   ? small[((n * s.small_h + y) * s.small_w + x) * s.small_c + s.before + c]
                   : W{};
  }
};

/// Index i writes word i of images of `width` pixels of `channels` words in a line.
template <class W>
struct FlipLines {
  const W* x;
  W* flipped;
  std::int64_t width, channels;
  DKFAC_HD void operator()(std::int64_t i) const {
    using dkfac::cuda::quotient;
    const std::int64_t pixel = quotient(i, channels), c = i - pixel * channels;
    const std::int64_t line = quotient(pixel, width), col = pixel - line * width;
    flipped[i] = x[(line * width + width - 1 - col) * channels + c];
  }
};

}  // namespace dkfac::nn::cuda
