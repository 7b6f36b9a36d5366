#pragma once

#include <cstdint>

#include "nn/backends/cpu/storage.h"

/// Operations of pooling on one row of channels.
namespace dkfac::nn::cpu {

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
