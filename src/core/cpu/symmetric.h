#pragma once

#include <cmath>
#include <cstdint>

#include "core/cpu/matrix.h"

namespace dkfac::cpu {

/// Whether every element of the lower triangle of a[d,d] is finite; checked before eigensolvers,
/// which may iterate forever on a NaN.
template <class T>
[[nodiscard]] bool lower_is_finite(Matrix<const T> a, std::int64_t d) {
  for (std::int64_t i = 0; i < d; ++i) {
    const T* row = &a(i, 0);
    // x - x is 0 for a finite x and NaN otherwise: a sum that needs no branch per element.
    T sum{0};
    for (std::int64_t j = 0; j <= i; ++j) sum += row[j] - row[j];
    if (sum != T{0}) return false;
  }
  return true;
}

/// Transposes a[d,d] in place, in tiles.
template <class T>
void transpose_square(Matrix<T> a, std::int64_t d) {
  constexpr std::int64_t kTile = 16;
  for (std::int64_t i0 = 0; i0 < d; i0 += kTile) {
    for (std::int64_t j0 = 0; j0 <= i0; j0 += kTile) {
      const std::int64_t i1 = std::min(i0 + kTile, d);
      for (std::int64_t i = i0; i < i1; ++i) {
        const std::int64_t j1 = std::min(j0 + kTile, i);
        for (std::int64_t j = j0; j < j1; ++j) std::swap(a(i, j), a(j, i));
      }
    }
  }
}

}  // namespace dkfac::cpu
