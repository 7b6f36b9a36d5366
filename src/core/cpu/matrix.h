#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "dkfac/core/tensor_view.h"

#include "core/shared/element.h"

namespace dkfac::cpu {

using element::Type;
using element::visit_computing;

/// Matrix with element (i, j) at data[i*row + j*col]: also a transpose, or a block of either.
template <class T>
struct Matrix {
  T* data;
  std::int64_t row;
  std::int64_t col = 1;

  T& operator()(std::int64_t i, std::int64_t j) const { return data[i * row + j * col]; }
  [[nodiscard]] Matrix block(std::int64_t i, std::int64_t j) const {
    return {data + i * row + j * col, row, col};
  }
  [[nodiscard]] Matrix transposed() const { return {data, col, row}; }
  operator Matrix<const T>() const { return {data, row, col}; }  // NOLINT: as T* to const T*
};

/// Row stride of a checked matrix view, also if it has at most one row: BLAS's leading dimension.
template <class Void>
[[nodiscard]] std::int64_t row_stride(const BasicTensorView<Void>& x) {
  return std::max<std::int64_t>({x.dim(0) > 1 ? x.stride(0) : 0, x.dim(1), 1});
}

/// Returns the Matrix of a checked view.
template <class T, class Void>
[[nodiscard]] auto matrix_of(const BasicTensorView<Void>& x) {
  auto* data = x.template data<T>();
  return Matrix<std::remove_pointer_t<decltype(data)>>{data, row_stride(x)};
}

}  // namespace dkfac::cpu
