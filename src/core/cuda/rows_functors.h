#pragma once

#include <cstdint>
#include <limits>

#include "core/shared/cuda/device_code.h"

/// Gather and scatter of table rows by index. An index out of range is replaced by row 0 with NaN.
namespace dkfac::cuda {

struct RowIndices {
  const std::int32_t* index;
  std::int64_t count;  ///< Number of indices.
  std::int64_t rows;   ///< Number of table rows.
  [[nodiscard]] DKFAC_HD bool valid(std::int64_t r) const {
    return index[r] >= 0 && index[r] < rows;
  }
  [[nodiscard]] DKFAC_HD std::int64_t row(std::int64_t r) const { return valid(r) ? index[r] : 0; }
};

template <class T>
struct GatherRow {
  RowIndices indices;
  const T* table;
  T* out;
  std::int64_t width;
  DKFAC_HD void operator()(std::int64_t r, std::int64_t c) const {
    out[r * width + c] =
        indices.valid(r) ? table[indices.row(r) * width + c] : std::numeric_limits<T>::quiet_NaN();
  }
};

/// Links positions with equal indices. next[r]: the next position of the same row, or `count`;
/// first[r]: 1 if no earlier position has the same row.
struct LinkRows {
  RowIndices indices;
  std::int32_t *first, *next;
  DKFAC_HD void operator()(std::int64_t r) const {
    const std::int64_t row = indices.row(r);
    std::int64_t before = r - 1, after = r + 1;
    while (before >= 0 && indices.row(before) != row) --before;
    while (after < indices.count && indices.row(after) != row) ++after;
    first[r] = before < 0 ? 1 : 0;
    next[r] = static_cast<std::int32_t>(after);
  }
};

/// Adds all positions of a table row in the thread of the first one, so that no two threads write
/// one element.
template <class T>
struct ScatterAddRow {
  RowIndices indices;
  const std::int32_t *first, *next;
  const T* rows;
  T* table;
  std::int64_t width;
  DKFAC_HD void operator()(std::int64_t r, std::int64_t c) const {
    if (first[r] == 0) return;
    T& element = table[indices.row(r) * width + c];
    T sum = element;
    for (std::int64_t k = r; k < indices.count; k = next[k])
      sum += indices.valid(k) ? rows[k * width + c] : std::numeric_limits<T>::quiet_NaN();
    element = sum;
  }
};

}  // namespace dkfac::cuda
