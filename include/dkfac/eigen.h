#pragma once

#include <Eigen/Core>
#include <type_traits>

#include "dkfac/core/tensor_view.h"

/// Views of Eigen's matrices, for programs that use it; dkfac itself does not.
namespace dkfac {

namespace detail {
/// What Eigen keeps in memory, and does not free at the end of an expression.
template <class Matrix, class Plain = std::remove_cvref_t<Matrix>>
concept EigenMemory = std::is_base_of_v<Eigen::DenseBase<Plain>, Plain> &&
                          (Plain::Flags& Eigen::DirectAccessBit) != 0 &&
                      (std::is_lvalue_reference_v<Matrix> ||
                       !std::is_base_of_v<Eigen::PlainObjectBase<Plain>, Plain>);
}  // namespace detail

/// View of a matrix, a vector, or a Map, Ref or Block of one: its memory, in the storage order of
/// its type. A matrix has the shape [rows, columns], a vector [size]. It is mutable where Eigen's
/// is.
///
/// Eigen's default is column-major: with a sample in each column, view_of(x).transposed() is
/// [samples, features] without gaps, which records take.
template <detail::EigenMemory Matrix>
[[nodiscard]] auto view_of(Matrix&& matrix) {
  using Plain = std::remove_cvref_t<Matrix>;
  using Element = std::remove_pointer_t<decltype(matrix.data())>;
  using Void = std::conditional_t<std::is_const_v<Element>, const void, void>;
  if constexpr (Plain::IsVectorAtCompileTime)
    return BasicTensorView<Void>(matrix.data(), dtype_of<Element>, {matrix.size()},
                                 {matrix.innerStride()}, Device::cpu());
  else
    return BasicTensorView<Void>(matrix.data(), dtype_of<Element>, {matrix.rows(), matrix.cols()},
                                 {matrix.rowStride(), matrix.colStride()}, Device::cpu());
}

}  // namespace dkfac
