#pragma once

#include <cstdint>

#include "core/shared/cuda/index.h"
#include "core/shared/element.h"

/// Functors for packed lower triangles of width d. Kernels run over a rectangle without idle
/// threads. Its row p, of d + 1 columns, is row d-1-p of the triangle followed by row p, for the
/// (d + 1) / 2 values of p that give each row once.
namespace dkfac::cuda {

struct Fold {
  std::int64_t d;
  [[nodiscard]] DKFAC_HD std::int64_t rows() const { return (d + 1) / 2; }
  [[nodiscard]] DKFAC_HD std::int64_t cols() const { return d + 1; }

  /// (r, c) of place (p, j); r is negative beyond the middle row of an odd d, where there is none.
  struct Place {
    std::int64_t r, c;
  };
  [[nodiscard]] DKFAC_HD Place at(std::int64_t p, std::int64_t j) const {
    const std::int64_t lower = d - 1 - p;
    if (j <= lower) return {lower, j};
    if (p == lower) return {-1, 0};
    return {p, j - lower - 1};
  }
};

/// packed = lower triangle of a; returns 1 if the element is NaN or Inf.
template <class T>
struct PackLower {
  Fold fold;
  const T* a;
  std::int64_t row_stride;
  T* packed;
  DKFAC_HD std::int64_t operator()(std::int64_t p, std::int64_t j) const {
    const auto [r, c] = fold.at(p, j);
    if (r < 0) return 0;
    const T x = a[r * row_stride + c];
    packed[packed_row(r) + c] = x;
    return element::is_bad(x);
  }
};

/// PackLower for reduce_rows() over the places of its rectangle in order.
template <class T>
struct PackAndCount {
  PackLower<T> pack;
  DKFAC_HD std::int64_t operator()(std::int64_t, std::int64_t i) const {
    const std::int64_t p = quotient(i, pack.fold.cols());
    return pack(p, i - p * pack.fold.cols());
  }
};

/// Lower triangle of a = packed.
template <class T>
struct UnpackLower {
  Fold fold;
  const T* packed;
  T* a;
  std::int64_t row_stride;
  DKFAC_HD void operator()(std::int64_t p, std::int64_t j) const {
    const auto [r, c] = fold.at(p, j);
    if (r >= 0) a[r * row_stride + c] = packed[packed_row(r) + c];
  }
};

/// Loads the strict lower triangle for for_each_transposed(); elsewhere nothing is read.
template <class T>
struct LoadStrictlyLower {
  const T* packed;
  DKFAC_HD T operator()(std::int64_t r, std::int64_t c) const {
    return c < r ? packed[packed_row(r) + c] : T{};
  }
};

/// a[c, r] = (r, c), for the strict lower triangle only.
template <class T>
struct StoreStrictlyUpper {
  T* a;
  std::int64_t row_stride;
  DKFAC_HD void operator()(std::int64_t r, std::int64_t c, T value) const {
    if (c < r) a[c * row_stride + r] = value;
  }
};

template <class T>
struct PackedDiagonal {
  const T* packed;
  DKFAC_HD double operator()(std::int64_t, std::int64_t r) const {
    return static_cast<double>(packed[packed_row(r) + r]);
  }
};

}  // namespace dkfac::cuda
