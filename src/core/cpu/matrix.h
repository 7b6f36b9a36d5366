#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "dkfac/core/error.h"
#include "dkfac/core/tensor_view.h"

namespace dkfac::cpu {

/// Element (i, j) stands at data[i*row + j*col]: a matrix, its transpose, or a block of either.
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

/// Row stride of a checked matrix view, also where it has at most one row: what BLAS calls ld.
template <class Void>
[[nodiscard]] std::int64_t row_stride(const BasicTensorView<Void>& x) {
  return std::max<std::int64_t>({x.dim(0) > 1 ? x.stride(0) : 0, x.dim(1), 1});
}

/// The elements of a checked matrix view.
template <class T, class Void>
[[nodiscard]] auto matrix_of(const BasicTensorView<Void>& x) {
  auto* data = x.template data<T>();
  return Matrix<std::remove_pointer_t<decltype(data)>>{data, row_stride(x)};
}

/// f(T{}) with T = float or double for a computing dtype.
template <class F>
void with_real(DType dtype, F&& f) {
  dtype == DType::f64 ? f(double{}) : f(float{});
}

}  // namespace dkfac::cpu
