#pragma once

#include <cstdint>

#include "nn/backends/cpu/parallel.h"
#include "nn/backends/cpu/storage.h"
#include "vectorized.h"

/// Traversal of images, and operations of pooling on one row of channels.
namespace dkfac::nn::cpu {

/// Calls body(image) for each of `count` images of `size` elements, vectorised, in parallel.
template <class Body>
void for_images(std::int64_t count, std::int64_t size, const Body& body) {
  parallel_for(count, grain_of(size), [&](std::int64_t begin, std::int64_t end) {
    dkfac::cpu::vectorized([&] {
      for (std::int64_t image = begin; image < end; ++image) body(image);
    });
  });
}

/// y = max(y, x), with `position` in place[i] wherever x is larger, or where place[i] is -1, which
/// marks an empty maximum.
template <class T>
inline void take_larger(std::int64_t count, std::int64_t position, const T* x, T* y,
                        std::int32_t* place) {
  const auto here = static_cast<std::int32_t>(position);
#pragma GCC ivdep
  for (std::int64_t i = 0; i < count; ++i) {
    const Computed<T> value = load(x[i]), best = load(y[i]);
    const std::int32_t before = place[i];
    // The last comparison lets a NaN win; afterwards it stays the maximum.
    const bool wins = before < 0 || value > best || value != value;
    y[i] = store<T>(wins ? value : best);
    place[i] = wins ? here : before;
  }
}

template <class T>
inline void take_nothing(std::int64_t count, T* y, std::int32_t* place) {
  for (std::int64_t i = 0; i < count; ++i) {
    y[i] = T{};
    place[i] = -1;
  }
}

}  // namespace dkfac::nn::cpu
