#pragma once

#include <cstdint>

#include "core/shared/cuda/device_code.h"

/// Kernels over square and rectangular matrices: element (r, c) stands at data[r*row + c].
namespace dkfac::cuda {

/// The strict lower triangle; 0 elsewhere, without a look at what the mirror image writes.
template <class T>
struct LoadStrictLower {
  const T* data;
  std::int64_t row;
  DKFAC_HD T operator()(std::int64_t r, std::int64_t c) const {
    return c < r ? data[r * row + c] : T{};
  }
};

/// Stores (r, c) of the strict lower triangle at (c, r).
template <class T>
struct StoreTransposed {
  T* data;
  std::int64_t row;
  DKFAC_HD void operator()(std::int64_t r, std::int64_t c, T value) const {
    if (c < r) data[c * row + r] = value;
  }
};

template <class T>
struct AddToDiagonal {
  T* data;
  std::int64_t row;
  T value;
  DKFAC_HD void operator()(std::int64_t i) const { data[i * (row + 1)] += value; }
};

/// beta = 0 does not read.
template <class T>
struct ScaleElement {
  T* data;
  std::int64_t row;
  T beta;
  bool lower;  ///< The lower triangle alone.
  DKFAC_HD void operator()(std::int64_t r, std::int64_t c) const {
    if (lower && c > r) return;
    T& element = data[r * row + c];
    element = beta == T{} ? T{} : beta * element;
  }
};

}  // namespace dkfac::cuda
