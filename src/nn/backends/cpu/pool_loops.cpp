#include <array>
#include <type_traits>

#include "nn/backends/backend_pool.h"
#include "nn/backends/cpu/pool_rows.h"
#include "nn/backends/cpu/storage.h"
#include "nn/backends/cuda/pool_functors.h"

namespace dkfac::nn::cpu {
namespace {

struct Range {
  std::int64_t begin, end;
};

/// Returns the kernel rows (or columns) of the window at output `out` that lie inside an input of
/// `size`.
inline Range inside(const PoolShape& s, std::int64_t out, std::int64_t size) {
  const std::int64_t first = out * s.stride - s.pad, left = size - first;
  return {first < 0 ? -first : 0, left < s.kernel ? left : s.kernel};
}

/// Calls visit(window position, input offset) for each input element of one output position's
/// window; offsets are those of channel 0 within the image.
template <class Visit>
inline void for_window(const PoolShape& s, std::int64_t oh, std::int64_t ow, const Visit& visit) {
  const Range rows = inside(s, oh, s.h), columns = inside(s, ow, s.w);
  const std::int64_t corner = ((oh * s.stride - s.pad) * s.w + ow * s.stride - s.pad) * s.c;
  for (std::int64_t kh = rows.begin; kh < rows.end; ++kh) {
    for (std::int64_t kw = columns.begin; kw < columns.end; ++kw) {
      visit(kh * s.kernel + kw, corner + (kh * s.w + kw) * s.c);
    }
  }
}

/// Calls visit(oh, ow, output offset) for each output position of an image.
template <class Visit>
inline void for_outputs(const PoolShape& s, const Visit& visit) {
  for (std::int64_t oh = 0; oh < s.out_h; ++oh) {
    for (std::int64_t ow = 0; ow < s.out_w; ++ow) visit(oh, ow, (oh * s.out_w + ow) * s.c);
  }
}

/// Number of channels from which vectorising over them pays.
constexpr std::int64_t kManyChannels = 16;

/// For few channels: gathers one element of the window for many positions, for vectorisation.
template <class T>
inline void max_pool_positions(const PoolShape& s, std::int64_t oh, std::int64_t ow,
                               std::int64_t positions, const T* x, T* y, std::int32_t* place) {
  std::array<T, kManyChannels * kManyChannels> gathered;
  const Range rows = inside(s, oh, s.h);
  for (std::int64_t kh = rows.begin; kh < rows.end; ++kh) {
    const T* row = x + (oh * s.stride - s.pad + kh) * s.w * s.c;
    for (std::int64_t kw = 0; kw < s.kernel; ++kw) {
      // Columns first + p * stride, of which [p_begin, p_end) lie inside.
      const std::int64_t first = ow * s.stride - s.pad + kw;
      std::int64_t begin = 0, end = positions;
      while (begin < end && first + begin * s.stride < 0) ++begin;
      while (begin < end && first + (end - 1) * s.stride >= s.w) --end;
      for (std::int64_t p = begin; p < end; ++p) {
        const T* from = row + (first + p * s.stride) * s.c;
        for (std::int64_t c = 0; c < s.c; ++c) {
          gathered[static_cast<std::size_t>((p - begin) * s.c + c)] = from[c];
        }
      }
      take_larger((end - begin) * s.c, kh * s.kernel + kw, gathered.data(), y + begin * s.c,
                  place + begin * s.c);
    }
  }
}

template <class T>
inline void max_pool_image(const PoolShape& s, const T* x, T* y, std::int32_t* place) {
  take_nothing(s.out_h * s.out_w * s.c, y, place);
  if (s.c >= kManyChannels) {
    for_outputs(s, [&](std::int64_t oh, std::int64_t ow, std::int64_t out) {
      for_window(s, oh, ow, [&](std::int64_t k, std::int64_t in) {
        take_larger(s.c, k, x + in, y + out, place + out);
      });
    });
    return;
  }
  for (std::int64_t oh = 0; oh < s.out_h; ++oh) {
    for (std::int64_t ow = 0; ow < s.out_w; ow += kManyChannels) {
      const std::int64_t left = s.out_w - ow, out = (oh * s.out_w + ow) * s.c;
      const std::int64_t positions = left < kManyChannels ? left : kManyChannels;
      max_pool_positions(s, oh, ow, positions, x, y + out, place + out);
    }
  }
}

/// Returns the outputs (rows or columns, of `count`) whose windows contain the input at `at`.
inline Range containing(const PoolShape& s, std::int64_t at, std::int64_t count) {
  const std::int64_t padded = at + s.pad, last = padded / s.stride + 1;
  const std::int64_t first = padded < s.kernel ? 0 : (padded - s.kernel) / s.stride + 1;
  return {first, last < count ? last : count};
}

/// Whether gradients of several windows would be added in 16 bits, and rounded each time, if dx
/// itself held the sums.
template <class T>
inline bool rounds_sums(const PoolShape& s) {
  return !std::is_same_v<T, Computed<T>> && s.stride < s.kernel;
}

/// dx = the sum over the windows that contain an element of term(window position, output offset),
/// rounded once.
template <class T, class Term>
inline void sum_over_windows(const PoolShape& s, T* dx, const Term& term) {
  constexpr std::int64_t kStrip = 64;
  for (std::int64_t h = 0; h < s.h; ++h) {
    const Range rows = containing(s, h, s.out_h);
    for (std::int64_t w = 0; w < s.w; ++w, dx += s.c) {
      const Range columns = containing(s, w, s.out_w);
      for (std::int64_t first = 0; first < s.c; first += kStrip) {
        const std::int64_t left = s.c - first, length = left < kStrip ? left : kStrip;
        std::array<Computed<T>, kStrip> sums{};
        for (std::int64_t oh = rows.begin; oh < rows.end; ++oh) {
          for (std::int64_t ow = columns.begin; ow < columns.end; ++ow) {
            const std::int64_t kh = h + s.pad - oh * s.stride, kw = w + s.pad - ow * s.stride;
            const std::int64_t out = (oh * s.out_w + ow) * s.c + first;
            for (std::int64_t c = 0; c < length; ++c) {
              sums[static_cast<std::size_t>(c)] += term(kh * s.kernel + kw, out + c);
            }
          }
        }
        for (std::int64_t c = 0; c < length; ++c) {
          dx[first + c] = store<T>(sums[static_cast<std::size_t>(c)]);
        }
      }
    }
  }
}

template <class T>
inline void add_to(T& sum, Computed<T> term) {
  sum = store<T>(load(sum) + term);
}

template <class T>
inline void max_pool_backward_image(const PoolShape& s, const T* dy, const std::int32_t* place,
                                    T* dx) {
  if (rounds_sums<T>(s)) {
    return sum_over_windows(s, dx, [=](std::int64_t position, std::int64_t out) {
      const Computed<T> share = load(dy[out]);
      return place[out] == static_cast<std::int32_t>(position) ? share : Computed<T>{0};
    });
  }
  for (std::int64_t i = 0; i < s.h * s.w * s.c; ++i) dx[i] = T{};
  if (s.c < kManyChannels) {
    for_outputs(s, [&](std::int64_t oh, std::int64_t ow, std::int64_t out) {
      const std::int64_t corner = ((oh * s.stride - s.pad) * s.w + ow * s.stride - s.pad) * s.c;
      for (std::int64_t c = 0; c < s.c; ++c) {
        const std::int64_t kh = place[out + c] / s.kernel, kw = place[out + c] % s.kernel;
        add_to(dx[corner + (kh * s.w + kw) * s.c + c], load(dy[out + c]));
      }
    });
    return;
  }
  for_outputs(s, [&](std::int64_t oh, std::int64_t ow, std::int64_t out) {
    for_window(s, oh, ow, [&](std::int64_t k, std::int64_t in) {
      const auto position = static_cast<std::int32_t>(k);
#pragma GCC ivdep
      for (std::int64_t c = 0; c < s.c; ++c) {
        const Computed<T> share = load(dy[out + c]);
        add_to(dx[in + c], place[out + c] == position ? share : Computed<T>{0});
      }
    });
  });
}

template <class T>
inline void average_pool_image(const PoolShape& s, const T* x, T* y) {
  using C = Computed<T>;
  constexpr std::int64_t kStrip = 64;
  const C share = C{1} / static_cast<C>(s.kernel * s.kernel);
  for_outputs(s, [&](std::int64_t oh, std::int64_t ow, std::int64_t out) {
    for (std::int64_t first = 0; first < s.c; first += kStrip) {
      const std::int64_t left = s.c - first, length = left < kStrip ? left : kStrip;
      std::array<C, kStrip> sums{};
      for_window(s, oh, ow, [&](std::int64_t, std::int64_t in) {
        for (std::int64_t c = 0; c < length; ++c) {
          sums[static_cast<std::size_t>(c)] += load(x[in + first + c]) * share;
        }
      });
      for (std::int64_t c = 0; c < length; ++c) {
        y[out + first + c] = store<T>(sums[static_cast<std::size_t>(c)]);
      }
    }
  });
}

template <class T>
inline void average_pool_backward_image(const PoolShape& s, const T* dy, T* dx) {
  using C = Computed<T>;
  const C share = C{1} / static_cast<C>(s.kernel * s.kernel);
  if (rounds_sums<T>(s)) {
    return sum_over_windows(s, dx,
                            [=](std::int64_t, std::int64_t out) { return load(dy[out]) * share; });
  }
  for (std::int64_t i = 0; i < s.h * s.w * s.c; ++i) dx[i] = T{};
  for_outputs(s, [&](std::int64_t oh, std::int64_t ow, std::int64_t out) {
    for_window(s, oh, ow, [&](std::int64_t, std::int64_t in) {
#pragma GCC ivdep
      for (std::int64_t c = 0; c < s.c; ++c) add_to(dx[in + c], load(dy[out + c]) * share);
    });
  });
}

}  // namespace

void max_pool(Context&, const PoolShape& s, ConstTensorView x, TensorView y, TensorView place) {
  visit_floating(x.dtype(), [&]<class T>(Type<T>) {
    const std::int64_t in = s.h * s.w * s.c, out = s.out_h * s.out_w * s.c;
    const T* from = x.data<T>();
    T* to = y.data<T>();
    auto* places = place.data<std::int32_t>();
    for_images(s.n, s.h * s.w * s.c, [&](std::int64_t i) {
      max_pool_image(s, from + i * in, to + i * out, places + i * out);
    });
  });
}

void max_pool_backward(Context&, const PoolShape& s, ConstTensorView dy, ConstTensorView addend,
                       ConstTensorView place, TensorView dx) {
  DKFAC_CHECK(addend.empty(),
              "[pool2d] a gradient is left to be added on the host, where residual ",
              "blocks add theirs");
  visit_floating(dy.dtype(), [&]<class T>(Type<T>) {
    const std::int64_t in = s.h * s.w * s.c, out = s.out_h * s.out_w * s.c;
    const T* from = dy.data<T>();
    T* to = dx.data<T>();
    const auto* places = place.data<std::int32_t>();
    for_images(s.n, s.h * s.w * s.c, [&](std::int64_t i) {
      max_pool_backward_image(s, from + i * out, places + i * out, to + i * in);
    });
  });
}

void average_pool(Context&, const PoolShape& s, ConstTensorView x, TensorView y) {
  visit_floating(x.dtype(), [&]<class T>(Type<T>) {
    const T* from = x.data<T>();
    T* to = y.data<T>();
    for_images(s.n, s.h * s.w * s.c, [&](std::int64_t i) {
      average_pool_image(s, from + i * s.h * s.w * s.c, to + i * s.out_h * s.out_w * s.c);
    });
  });
}

void average_pool_backward(Context&, const PoolShape& s, ConstTensorView dy, TensorView dx) {
  visit_floating(dy.dtype(), [&]<class T>(Type<T>) {
    const T* from = dy.data<T>();
    T* to = dx.data<T>();
    for_images(s.n, s.h * s.w * s.c, [&](std::int64_t i) {
      average_pool_backward_image(s, from + i * s.out_h * s.out_w * s.c, to + i * s.h * s.w * s.c);
    });
  });
}

void max_pool_tangent(Context&, const PoolShape& s, ConstTensorView dx, ConstTensorView place,
                      TensorView dy) {
  visit_floating(dx.dtype(), [&]<class T>(Type<T>) {
    each(dy.numel(), 1,
         cuda::MaxPoolTangent<T, 1, std::int32_t>{s, dx.data<T>(), place.data<std::int32_t>(),
                                                  dy.data<T>()});
  });
}

}  // namespace dkfac::nn::cpu
