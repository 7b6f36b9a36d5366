#pragma once

#include <cstdint>

#include "core/shared/cuda/device_code.h"

/// Functors over matrices; element (r, c) is at data[r*row + c].
namespace dkfac::cuda {

/// Loads the strict lower triangle; 0 elsewhere, without reading the elements that are written.
template <class T>
struct LoadStrictLower {
  const T* data;
  std::int64_t row;
  DKFAC_HD T operator()(std::int64_t r, std::int64_t c) const {
    return c < r ? data[r * row + c] : T{};
  }
};

template <class T>
struct AddToDiagonal {
  T* data;
  std::int64_t row;
  T value;
  DKFAC_HD void operator()(std::int64_t i) const { data[i * (row + 1)] += value; }
};

/// Scales an element by beta; beta = 0 does not read it.
template <class T>
struct ScaleElement {
  T* data;
  std::int64_t row;
  T beta;
  bool lower;  ///< Scales the lower triangle only.
  DKFAC_HD void operator()(std::int64_t r, std::int64_t c) const {
    if (lower && c > r) return;
    T& element = data[r * row + c];
    element = beta == T{} ? T{} : beta * element;
  }
};

}  // namespace dkfac::cuda
