#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "core/shared/cuda/convert.h"
#include "core/shared/cuda/device_code.h"
#include "core/shared/cuda/index.h"
#include "core/shared/element.h"

/// Sums of products into lower triangles.
namespace dkfac::cuda {

/// Type of sums over values of S.
template <class S>
using SumOf = std::conditional_t<element::is_half<S>, float, S>;

/// Returns sum + beta*before; beta = 0 does not read `before`.
template <class T>
[[nodiscard]] DKFAC_HD T blended(T sum, T beta, const T& before) {
  return beta == T{} ? sum : sum + beta * before;
}

/// x(k, c) of a matrix.
template <class S, class T>
struct ColumnElement {
  const S* x;
  std::int64_t row;
  DKFAC_HD T operator()(std::int64_t c, std::int64_t k) const { return widened<T>(x[k * row + c]); }
};

/// to[i] = alpha*value + beta*to[i].
template <class T>
struct BlendInto {
  T* to;
  T alpha, beta;
  DKFAC_HD void operator()(std::int64_t i, T value) const {
    to[i] = blended(alpha * value, beta, to[i]);
  }
};

/// *to = beta * *to + value.
template <class T>
struct BlendOne {
  T* to;
  T value, beta;
  DKFAC_HD void operator()(std::int64_t) const { *to = blended(value, beta, *to); }
};

/// c[rows,cols] = alpha * (sum of `count` consecutive matrices of this shape) + beta*c.
template <class T>
struct SumPartsInto {
  const T* parts;
  std::int64_t count, rows, cols;
  T* c;
  std::int64_t row;
  T alpha, beta;
  bool lower;  ///< Writes the lower triangle only.
  DKFAC_HD void operator()(std::int64_t i, std::int64_t j) const {
    if (lower && j > i) return;
    T sum{};
    for (std::int64_t p = 0; p < count; ++p) sum += parts[(p * rows + i) * cols + j];
    c[i * row + j] = blended(alpha * sum, beta, c[i * row + j]);
  }
};

/// Stores row i = group*d + r of the lower triangles of c[groups,d,d]: alpha*[products sums; sums'
/// rows] + beta*c for products[groups,width,width] and sums[groups,width]. d = width, or width + 1
/// with sums and the number of rows in the last row.
template <class T>
struct StoreGroups {
  const T* products;
  const T* sums;
  std::int64_t width, d;
  T* c;
  std::int64_t apart, row;
  T alpha, beta, rows;  ///< rows: alpha times their number.
  DKFAC_HD void operator()(std::int64_t i, std::int64_t j) const {
    const std::int64_t group = quotient(i, d), r = i - group * d;
    if (j > r) return;
    T value = rows;
    if (r < width) {
      value = alpha * products[(group * width + r) * width + j];
    } else if (j < width) {
      value = alpha * sums[group * width + j];
    }
    T& to = c[group * apart + r * row + j];
    to = blended(value, beta, to);
  }
};

/// Rows of one running sum. Tensor cores truncate when they add, so a sum of many terms of one sign
/// is too small by up to 2^-24 for each of its (rows / 16) additions. Partial sums of this many
/// rows keep that near 1e-4, and are added with rounding.
inline constexpr std::int64_t kRunningSum = 16384;

/// Partition of the rows of a product of two tall matrices, rows = rounds * groups * per + rest:
/// `rounds` calls of `groups` products over `per` rows each, then one over the rest.
struct RowGroups {
  std::int64_t rounds, groups, per, rest;
};

/// Chooses enough groups for the tiles of a result [m,n] to occupy a device, unless the groups
/// would be short. It ignores the size of the device: the order of sums depends on shapes alone.
[[nodiscard]] inline RowGroups row_groups(std::int64_t rows, std::int64_t m, std::int64_t n) {
  constexpr std::int64_t kTile = 128, kTiles = 128, kLeastRows = 512;
  const std::int64_t tiles = ((m + kTile - 1) / kTile) * ((n + kTile - 1) / kTile);
  const std::int64_t groups =
      std::clamp<std::int64_t>(kTiles / tiles, 1, std::max<std::int64_t>(1, rows / kLeastRows));
  const std::int64_t rounds = (rows + groups * kRunningSum - 1) / (groups * kRunningSum);
  const std::int64_t per = rows / (groups * rounds);
  return {rounds, groups, per, rows - rounds * groups * per};
}

}  // namespace dkfac::cuda
