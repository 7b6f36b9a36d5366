#pragma once

#include <cstdint>

#include "core/shared/cuda/device_code.h"

/// Functors over the scalar results of a step. Pointers refer to the memory of the device that runs
/// them; host code calls them as well.
namespace dkfac::kfac {

/// Diagonal element row * each + k of consecutive packed triangles of width dim.
template <class T>
struct PackedDiagonal {
  const T* packed;
  std::int64_t dim;
  std::int64_t each = 0;
  DKFAC_HD double operator()(std::int64_t row, std::int64_t k) const {
    k += row * each;
    const std::int64_t size = dim * (dim + 1) / 2, r = k % dim;
    return static_cast<double>(packed[k / dim * size + r * (r + 3) / 2]);
  }
};

/// Terms of the sums of squares of full symmetric matrices, consecutive packed triangles of width
/// dim: of each row of the reduction first every element, twice, then the diagonals, once less.
template <class T>
struct PackedSquare {
  const T* packed;
  std::int64_t dim;
  std::int64_t triangles;  ///< Of a row.
  [[nodiscard]] DKFAC_HD std::int64_t elements() const { return triangles * (dim * (dim + 1) / 2); }
  [[nodiscard]] std::int64_t count() const { return elements() + triangles * dim; }
  DKFAC_HD double operator()(std::int64_t row, std::int64_t k) const {
    const std::int64_t numel = elements();
    const bool whole = k < numel;
    const double value = whole ? static_cast<double>(packed[row * numel + k])
                               : PackedDiagonal<T>{packed, dim, triangles * dim}(row, k - numel);
    return (whole ? 2 : -1) * value * value;
  }
};

/// x[i]^2.
template <class T>
struct Square {
  const T* x;
  DKFAC_HD double operator()(std::int64_t, std::int64_t i) const {
    const auto value = static_cast<double>(x[i]);
    return value * value;
  }
};

}  // namespace dkfac::kfac
