#pragma once

#include <cstddef>
#include <cstdint>

#include "core/shared/cuda/convert.h"
#include "core/shared/cuda/device_code.h"
#include "core/shared/cuda/index.h"
#include "nn/backends/cuda/channel_packs.h"
#include "nn/backends/cuda/columns.h"
#include "nn/backends/dtype.h"
#include "nn/backends/pool_shape.h"

/// Pooling of W neighbouring channels at a time (backend_pool.h). Gradients are gathered: each
/// element of dx reads the windows that contain it, in the order of the outputs.
namespace dkfac::nn::cuda {

/// Positions of maxima, in packs of at most 16 bytes. P: std::int32_t, or std::uint8_t where they
/// fit.
template <std::size_t W, class P>
DKFAC_HD void load_places(const P* from, std::int32_t (&to)[W]) {
  constexpr std::size_t kAtOnce = W < 16 / sizeof(P) ? W : 16 / sizeof(P);
  for (std::size_t k = 0; k < W; k += kAtOnce) {
    const auto some = load_pack<kAtOnce>(from + k);
    for (std::size_t j = 0; j < kAtOnce; ++j) to[k + j] = some.at[j];
  }
}
template <std::size_t W, class P>
DKFAC_HD void store_places(P* to, const std::int32_t (&from)[W]) {
  constexpr std::size_t kAtOnce = W < 16 / sizeof(P) ? W : 16 / sizeof(P);
  for (std::size_t k = 0; k < W; k += kAtOnce) {
    Pack<P, kAtOnce> some;
    for (std::size_t j = 0; j < kAtOnce; ++j) some.at[j] = static_cast<P>(from[k + j]);
    store_pack<kAtOnce>(to + k, some);
  }
}

/// Running maxima and their positions. Of equal values the first stays; a NaN replaces any other
/// value.
template <class T, std::size_t W>
struct Maxima {
  using C = Computed<T>;
  C best[W];
  std::int32_t place[W];

  DKFAC_HD Maxima() {
    for (std::size_t c = 0; c < W; ++c) {
      best[c] = 0;
      place[c] = -1;
    }
  }
  DKFAC_HD void take(const Pack<T, W>& pack, std::int64_t position) {
    for (std::size_t c = 0; c < W; ++c) {
      const auto value = widened<C>(pack.at[c]);
      if (place[c] < 0 || value > best[c] || value != value) {
        best[c] = value;
        place[c] = static_cast<std::int32_t>(position);
      }
    }
  }
  template <class P>
  DKFAC_HD void put(T* y, P* places) const {
    put_values<T, W>(y, best);
    store_places<W>(places, place);
  }
};

/// The windows that contain a row (or column) of the input: outputs [first, last].
struct Windows {
  std::int64_t first, last;
  DKFAC_HD Windows(const PoolShape& s, std::int64_t at, std::int64_t outputs) {
    using dkfac::cuda::quotient;
    const std::int64_t end = at + s.pad, begin = end - s.kernel + 1;
    first = begin <= 0 ? 0 : quotient(begin + s.stride - 1, s.stride);
    last = quotient(end, s.stride);
    if (last > outputs - 1) last = outputs - 1;
  }
};

/// Position of pack i of a map [n,h,w,packs].
struct PackPlace {
  std::int64_t n, row, column, pack;
  DKFAC_HD PackPlace(std::int64_t i, std::int64_t h, std::int64_t w, std::int64_t packs) {
    using dkfac::cuda::quotient;
    const std::int64_t pixel = quotient(i, packs), line = quotient(pixel, w);
    pack = i - pixel * packs;
    column = pixel - line * w;
    n = quotient(line, h);
    row = line - n * h;
  }
};

/// Calls f(position in the window, index in x of its first channel) for the input pixels of the
/// window at `at`, a place of y.
template <class F>
DKFAC_HD void each_input(const PoolShape& s, const PackPlace& at, std::int64_t channel, F f) {
  const std::int64_t top = at.row * s.stride - s.pad, left = at.column * s.stride - s.pad;
  for (std::int64_t kh = top < 0 ? -top : 0; kh < s.kernel && top + kh < s.h; ++kh)
    for (std::int64_t kw = left < 0 ? -left : 0; kw < s.kernel && left + kw < s.w; ++kw)
      f(kh * s.kernel + kw, ((at.n * s.h + top + kh) * s.w + left + kw) * s.c + channel);
}
/// Calls f(position in the window, index in y of its first channel) for the windows that contain
/// `at`, a place of x.
template <class F>
DKFAC_HD void each_window(const PoolShape& s, const PackPlace& at, std::int64_t channel, F f) {
  const Windows rows(s, at.row, s.out_h), columns(s, at.column, s.out_w);
  for (std::int64_t oh = rows.first; oh <= rows.last; ++oh)
    for (std::int64_t ow = columns.first; ow <= columns.last; ++ow) {
      const std::int64_t kh = at.row + s.pad - oh * s.stride;
      const std::int64_t kw = at.column + s.pad - ow * s.stride;
      f(kh * s.kernel + kw, ((at.n * s.out_h + oh) * s.out_w + ow) * s.c + channel);
    }
}

/// Index i computes pack i of y.
template <class T, std::size_t W, class P>
struct MaxPool {
  PoolShape s;
  const T* x;
  T* y;
  P* place;

  DKFAC_HD void operator()(std::int64_t i) const {
    const PackPlace at(i, s.out_h, s.out_w, s.c / kWidth<W>);
    Maxima<T, W> largest;
    each_input(s, at, at.pack * kWidth<W>, [&](std::int64_t position, std::int64_t from) {
      largest.take(load_pack<W>(x + from), position);
    });
    largest.put(y + i * kWidth<W>, place + i * kWidth<W>);
  }
};

/// Index i computes pack i of dx.
template <class T, std::size_t W, class P>
struct MaxPoolBackward {
  using C = Computed<T>;
  PoolShape s;
  const T *dy, *addend;  ///< Null: none.
  const P* place;
  T* dx;

  DKFAC_HD void operator()(std::int64_t i) const {
    const PackPlace at(i, s.h, s.w, s.c / kWidth<W>);
    C sum[W] = {};
    each_window(s, at, at.pack * kWidth<W>, [&](std::int64_t position, std::int64_t from) {
      const Pack<T, W> pack = load_sum<W>(dy, addend, from);
      std::int32_t of_maximum[W];
      load_places<W>(place + from, of_maximum);
      for (std::size_t c = 0; c < W; ++c)
        if (of_maximum[c] == position) sum[c] += widened<C>(pack.at[c]);
    });
    put_values<T, W>(dx + i * kWidth<W>, sum);
  }
};

/// Index i computes pack i of y, or backwards of dx. Pixels outside count as zeros.
template <class T, std::size_t W, bool backward = false>
struct AveragePool {
  using C = Computed<T>;
  PoolShape s;
  const T* from;
  T* to;

  DKFAC_HD void operator()(std::int64_t i) const {
    const PackPlace at(i, backward ? s.h : s.out_h, backward ? s.w : s.out_w, s.c / kWidth<W>);
    const C share = C{1} / static_cast<C>(s.kernel * s.kernel);
    C sum[W] = {};
    const auto add = [&](std::int64_t, std::int64_t index) {
      const Pack<T, W> pack = load_pack<W>(from + index);
      for (std::size_t c = 0; c < W; ++c) sum[c] += widened<C>(pack.at[c]) * share;
    };
    if constexpr (backward) {
      each_window(s, at, at.pack * kWidth<W>, add);
    } else {
      each_input(s, at, at.pack * kWidth<W>, add);
    }
    put_values<T, W>(to + i * kWidth<W>, sum);
  }
};
template <class T, std::size_t W>
using AveragePoolBackward = AveragePool<T, W, true>;

/// Sums over a thread's positions of image `n`, in f64, for sum_columns().
template <class T, std::size_t W>
struct PositionRows {
  const T* x;
  std::int64_t positions, channels;

  DKFAC_HD Sums<W> operator()(std::int64_t n, std::int64_t pack, std::int64_t position,
                              std::int64_t stride, std::int64_t count) const {
    const T* from = x + (n * positions + position) * channels + pack * kWidth<W>;
    Sums<W> out{};
    each_pack<4, W>(from, stride * channels, count, [&](const Pack<T, W>& in, std::size_t) {
      for (std::size_t c = 0; c < W; ++c) out.at[c] += widened<double>(in.at[c]);
    });
    return out;
  }
};
template <class T, std::size_t W>
struct StoreMeans {
  T* y;
  std::int64_t positions, channels;

  DKFAC_HD void operator()(std::int64_t n, std::int64_t, std::int64_t pack,
                           const Sums<W>& sums) const {
    Computed<T> mean[W];
    for (std::size_t c = 0; c < W; ++c)
      mean[c] = static_cast<Computed<T>>(sums.at[c] / static_cast<double>(positions));
    put_values<T, W>(y + n * channels + pack * kWidth<W>, mean);
  }
};

/// Index i computes pack i of dx.
template <class T, std::size_t W>
struct GlobalAverageBackward {
  using C = Computed<T>;
  std::int64_t positions, channels;
  const T* dy;
  T* dx;

  DKFAC_HD void operator()(std::int64_t i) const {
    const PackPlace at(i, 1, positions, channels / kWidth<W>);
    const C share = C{1} / static_cast<C>(positions);
    const Pack<T, W> pack = load_pack<W>(dy + at.n * channels + at.pack * kWidth<W>);
    C value[W];
    for (std::size_t c = 0; c < W; ++c) value[c] = widened<C>(pack.at[c]) * share;
    put_values<T, W>(dx + i * kWidth<W>, value);
  }
};

/// Index i computes pack i of y.
template <class T, std::size_t W>
struct GlobalMax {
  std::int64_t positions, channels;
  const T* x;
  T* y;
  std::int32_t* place;

  DKFAC_HD void operator()(std::int64_t i) const {
    const PackPlace at(i, 1, 1, channels / kWidth<W>);
    const T* from = x + at.n * positions * channels + at.pack * kWidth<W>;
    Maxima<T, W> largest;
    each_pack<4, W>(from, channels, positions, [&](const Pack<T, W>& in, std::size_t position) {
      largest.take(in, static_cast<std::int64_t>(position));
    });
    largest.put(y + i * kWidth<W>, place + i * kWidth<W>);
  }
};

/// Index i computes pack i of dx.
template <class T, std::size_t W>
struct GlobalMaxBackward {
  std::int64_t positions, channels;
  const T* dy;
  const std::int32_t* place;
  T* dx;

  DKFAC_HD void operator()(std::int64_t i) const {
    const PackPlace at(i, 1, positions, channels / kWidth<W>);
    const std::int64_t from = at.n * channels + at.pack * kWidth<W>;
    const Pack<T, W> pack = load_pack<W>(dy + from);
    std::int32_t of_maximum[W];
    load_places<W>(place + from, of_maximum);
    Pack<T, W> out;
    for (std::size_t c = 0; c < W; ++c) out.at[c] = of_maximum[c] == at.column ? pack.at[c] : T{};
    store_pack<W>(dx + i * kWidth<W>, out);
  }
};

/// Index i computes pack i of dy: dx at the positions of the maxima.
template <class T, std::size_t W, class P>
struct MaxPoolTangent {
  PoolShape s;
  const T* dx;
  const P* place;
  T* dy;

  DKFAC_HD void operator()(std::int64_t i) const {
    using dkfac::cuda::quotient;
    const PackPlace at(i, s.out_h, s.out_w, s.c / kWidth<W>);
    const std::int64_t top = at.row * s.stride - s.pad, left = at.column * s.stride - s.pad;
    std::int32_t of_maximum[W];
    load_places<W>(place + i * kWidth<W>, of_maximum);
    Pack<T, W> out;
    for (std::size_t c = 0; c < W; ++c) {
      const std::int64_t kh = quotient(of_maximum[c], s.kernel);
      const std::int64_t kw = of_maximum[c] - kh * s.kernel;
      const std::int64_t channel = at.pack * kWidth<W> + static_cast<std::int64_t>(c);
      out.at[c] = dx[((at.n * s.h + top + kh) * s.w + left + kw) * s.c + channel];
    }
    store_pack<W>(dy + i * kWidth<W>, out);
  }
};

/// Index i computes pack i of dy.
template <class T, std::size_t W>
struct GlobalMaxTangent {
  std::int64_t positions, channels;
  const T* dx;
  const std::int32_t* place;
  T* dy;

  DKFAC_HD void operator()(std::int64_t i) const {
    const PackPlace at(i, 1, 1, channels / kWidth<W>);
    std::int32_t of_maximum[W];
    load_places<W>(place + i * kWidth<W>, of_maximum);
    Pack<T, W> out;
    for (std::size_t c = 0; c < W; ++c)
      out.at[c] = dx[(at.n * positions + of_maximum[c]) * channels + at.pack * kWidth<W> +
                     static_cast<std::int64_t>(c)];
    store_pack<W>(dy + i * kWidth<W>, out);
  }
};

}  // namespace dkfac::nn::cuda
