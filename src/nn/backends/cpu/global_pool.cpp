#include <algorithm>
#include <array>

#include "nn/backends/backend_pool.h"
#include "nn/backends/cpu/pool_rows.h"
#include "nn/backends/cpu/storage.h"
#include "nn/backends/cuda/pool_functors.h"

namespace dkfac::nn::cpu {
namespace {

template <class T>
inline void average_image(const GlobalShape& s, const T* x, T* y) {
  constexpr std::int64_t kStrip = 32;
  for (std::int64_t first = 0; first < s.c; first += kStrip) {
    const std::int64_t left = s.c - first, length = left < kStrip ? left : kStrip;
    std::array<double, kStrip> sums{};
    for (std::int64_t p = 0; p < s.positions; ++p) {
      for (std::int64_t j = 0; j < length; ++j) {
        sums[static_cast<std::size_t>(j)] += static_cast<double>(load(x[p * s.c + first + j]));
      }
    }
    for (std::int64_t j = 0; j < length; ++j) {
      const double mean = sums[static_cast<std::size_t>(j)] / static_cast<double>(s.positions);
      y[first + j] = store<T>(static_cast<Computed<T>>(mean));
    }
  }
}

}  // namespace

void global_average(Context&, const GlobalShape& s, ConstTensorView x, TensorView y) {
  visit_floating(x.dtype(), [&]<class T>(Type<T>) {
    const T* from = x.data<T>();
    T* to = y.data<T>();
    for_images(s.n, s.positions * s.c, [&](std::int64_t i) {
      average_image(s, from + i * s.positions * s.c, to + i * s.c);
    });
  });
}

void global_average_backward(Context&, const GlobalShape& s, ConstTensorView dy, TensorView dx) {
  visit_floating(dy.dtype(), [&]<class T>(Type<T>) {
    using C = Computed<T>;
    const T* from = dy.data<T>();
    T* to = dx.data<T>();
    const C share = C{1} / static_cast<C>(s.positions);
    for_images(s.n, s.positions * s.c, [&](std::int64_t i) {
      const T* grad = from + i * s.c;
      for (std::int64_t p = 0; p < s.positions; ++p) {
        T* row = to + (i * s.positions + p) * s.c;
#pragma GCC ivdep
        for (std::int64_t j = 0; j < s.c; ++j) row[j] = store<T>(load(grad[j]) * share);
      }
    });
  });
}

void global_max(Context&, const GlobalShape& s, ConstTensorView x, TensorView y, TensorView place) {
  visit_floating(x.dtype(), [&]<class T>(Type<T>) {
    const T* from = x.data<T>();
    T* to = y.data<T>();
    auto* places = place.data<std::int32_t>();
    for_images(s.n, s.positions * s.c, [&](std::int64_t i) {
      take_nothing(s.c, to + i * s.c, places + i * s.c);
      for (std::int64_t p = 0; p < s.positions; ++p) {
        take_larger(s.c, p, from + (i * s.positions + p) * s.c, to + i * s.c, places + i * s.c);
      }
    });
  });
}

void global_max_backward(Context&, const GlobalShape& s, ConstTensorView dy, ConstTensorView place,
                         TensorView dx) {
  visit_floating(dy.dtype(), [&]<class T>(Type<T>) {
    const T* from = dy.data<T>();
    T* to = dx.data<T>();
    const auto* places = place.data<std::int32_t>();
    for_images(s.n, s.positions * s.c, [&](std::int64_t i) {
      T* image = to + i * s.positions * s.c;
      for (std::int64_t k = 0; k < s.positions * s.c; ++k) image[k] = T{};
      for (std::int64_t j = 0; j < s.c; ++j) {
        image[places[i * s.c + j] * s.c + j] = from[i * s.c + j];
      }
    });
  });
}

void global_max_tangent(Context&, const GlobalShape& s, ConstTensorView dx, ConstTensorView place,
                        TensorView dy) {
  visit_floating(dx.dtype(), [&]<class T>(Type<T>) {
    each(dy.numel(), 1,
         cuda::GlobalMaxTangent<T, 1>{s.positions, s.c, dx.data<T>(), place.data<std::int32_t>(),
                                      dy.data<T>()});
  });
}

}  // namespace dkfac::nn::cpu
