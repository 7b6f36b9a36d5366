#include "nn/cpu/pool_loops.h"

#include <algorithm>

#include "nn/cpu/parallel.h"
#include "nn/dtype.h"

namespace dkfac::nn::cpu {
namespace {

/// Images are independent also where windows overlap.
template <class Body>
void for_images(const PoolShape& s, const Body& body) {
  parallel_for(s.n, grain_of(s.h * s.w * s.c), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t image = begin; image < end; ++image) body(image);
  });
}

/// visit(window position, input offset) for each element of one output position's window; offsets
/// are those of channel 0 within the image.
template <class Visit>
inline void for_window(const PoolShape& s, std::int64_t oh, std::int64_t ow, const Visit& visit) {
  for (std::int64_t kh = 0; kh < s.kernel; ++kh) {
    for (std::int64_t kw = 0; kw < s.kernel; ++kw) {
      visit(kh * s.kernel + kw, ((oh * s.stride + kh) * s.w + ow * s.stride + kw) * s.c);
    }
  }
}

/// visit(oh, ow, output offset) for each output position of an image.
template <class Visit>
inline void for_outputs(const PoolShape& s, const Visit& visit) {
  for (std::int64_t oh = 0; oh < s.out_h; ++oh) {
    for (std::int64_t ow = 0; ow < s.out_w; ++ow) visit(oh, ow, (oh * s.out_w + ow) * s.c);
  }
}

template <class T>
void max_pool_image(const PoolShape& s, const T* x, T* y, std::int32_t* place) {
  for_outputs(s, [&](std::int64_t oh, std::int64_t ow, std::int64_t out) {
    for_window(s, oh, ow, [&](std::int64_t k, std::int64_t in) {
      const auto position = static_cast<std::int32_t>(k);
      for (std::int64_t c = 0; c < s.c; ++c) {
        const T value = x[in + c], best = y[out + c];
        // The second comparison lets a NaN win, and nothing beats it afterwards.
        const bool wins = k == 0 || value > best || value != value;
        y[out + c] = wins ? value : best;
        place[out + c] = wins ? position : place[out + c];
      }
    });
  });
}

template <class T>
void max_pool_backward_image(const PoolShape& s, const T* dy, const std::int32_t* place, T* dx) {
  std::fill_n(dx, s.h * s.w * s.c, T{0});
  for_outputs(s, [&](std::int64_t oh, std::int64_t ow, std::int64_t out) {
    for_window(s, oh, ow, [&](std::int64_t k, std::int64_t in) {
      const auto position = static_cast<std::int32_t>(k);
      for (std::int64_t c = 0; c < s.c; ++c) {
        dx[in + c] += place[out + c] == position ? dy[out + c] : T{0};
      }
    });
  });
}

template <class T>
void average_pool_image(const PoolShape& s, const T* x, T* y) {
  const T share = T{1} / static_cast<T>(s.kernel * s.kernel);
  for_outputs(s, [&](std::int64_t oh, std::int64_t ow, std::int64_t out) {
    std::fill_n(y + out, s.c, T{0});
    for_window(s, oh, ow, [&](std::int64_t, std::int64_t in) {
      for (std::int64_t c = 0; c < s.c; ++c) y[out + c] += x[in + c] * share;
    });
  });
}

template <class T>
void average_pool_backward_image(const PoolShape& s, const T* dy, T* dx) {
  const T share = T{1} / static_cast<T>(s.kernel * s.kernel);
  std::fill_n(dx, s.h * s.w * s.c, T{0});
  for_outputs(s, [&](std::int64_t oh, std::int64_t ow, std::int64_t out) {
    for_window(s, oh, ow, [&](std::int64_t, std::int64_t in) {
      for (std::int64_t c = 0; c < s.c; ++c) dx[in + c] += dy[out + c] * share;
    });
  });
}

}  // namespace

void max_pool(const PoolShape& s, ConstTensorView x, TensorView y, TensorView place) {
  for_dtype(x.dtype(), [&](auto t) {
    using T = decltype(t);
    const std::int64_t in = s.h * s.w * s.c, out = s.out_h * s.out_w * s.c;
    const T* from = x.data<T>();
    T* to = y.data<T>();
    auto* places = place.data<std::int32_t>();
    for_images(s, [&](std::int64_t i) {
      max_pool_image(s, from + i * in, to + i * out, places + i * out);
    });
  });
}

void max_pool_backward(const PoolShape& s, ConstTensorView dy, ConstTensorView place,
                       TensorView dx) {
  for_dtype(dy.dtype(), [&](auto t) {
    using T = decltype(t);
    const std::int64_t in = s.h * s.w * s.c, out = s.out_h * s.out_w * s.c;
    const T* from = dy.data<T>();
    T* to = dx.data<T>();
    const auto* places = place.data<std::int32_t>();
    for_images(s, [&](std::int64_t i) {
      max_pool_backward_image(s, from + i * out, places + i * out, to + i * in);
    });
  });
}

void average_pool(const PoolShape& s, ConstTensorView x, TensorView y) {
  for_dtype(x.dtype(), [&](auto t) {
    using T = decltype(t);
    const T* from = x.data<T>();
    T* to = y.data<T>();
    for_images(s, [&](std::int64_t i) {
      average_pool_image(s, from + i * s.h * s.w * s.c, to + i * s.out_h * s.out_w * s.c);
    });
  });
}

void average_pool_backward(const PoolShape& s, ConstTensorView dy, TensorView dx) {
  for_dtype(dy.dtype(), [&](auto t) {
    using T = decltype(t);
    const T* from = dy.data<T>();
    T* to = dx.data<T>();
    for_images(s, [&](std::int64_t i) {
      average_pool_backward_image(s, from + i * s.out_h * s.out_w * s.c, to + i * s.h * s.w * s.c);
    });
  });
}

void global_average(std::int64_t n, std::int64_t positions, std::int64_t c, ConstTensorView x,
                    TensorView y) {
  for_dtype(x.dtype(), [&](auto t) {
    using T = decltype(t);
    const T* from = x.data<T>();
    T* to = y.data<T>();
    parallel_for(n * c, grain_of(positions), [=](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const T* channel = from + i / c * positions * c + i % c;
        double sum = 0;
        for (std::int64_t p = 0; p < positions; ++p) sum += static_cast<double>(channel[p * c]);
        to[i] = static_cast<T>(sum / static_cast<double>(positions));
      }
    });
  });
}

void global_average_backward(std::int64_t n, std::int64_t positions, std::int64_t c,
                             ConstTensorView dy, TensorView dx) {
  for_dtype(dy.dtype(), [&](auto t) {
    using T = decltype(t);
    const T* from = dy.data<T>();
    T* to = dx.data<T>();
    const T share = T{1} / static_cast<T>(positions);
    parallel_for(n * positions, grain_of(c), [=](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const T* grad = from + row / positions * c;
        for (std::int64_t j = 0; j < c; ++j) to[row * c + j] = grad[j] * share;
      }
    });
  });
}

}  // namespace dkfac::nn::cpu
