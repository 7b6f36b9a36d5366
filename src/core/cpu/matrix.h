#pragma once

#include <algorithm>
#include <cstddef>
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

/// View of matrix i of a batch.
template <class Void>
[[nodiscard]] BasicTensorView<Void> matrix_at(const BasicTensorView<Void>& batch, std::int64_t i) {
  using Byte = std::conditional_t<std::is_const_v<Void>, const std::byte, std::byte>;
  auto* data = static_cast<Byte*>(batch.raw()) +
               i * batch.stride(0) * static_cast<std::int64_t>(size_of(batch.dtype()));
  return {data, batch.dtype(), Shape{batch.dim(1), batch.dim(2)},
          Strides{batch.stride(1), batch.stride(2)}, batch.device()};
}

/// Returns the Matrix of a checked view.
template <class T, class Void>
[[nodiscard]] auto matrix_of(const BasicTensorView<Void>& x) {
  auto* data = x.template data<T>();
  return Matrix<std::remove_pointer_t<decltype(data)>>{data, row_stride(x)};
}

}  // namespace dkfac::cpu
