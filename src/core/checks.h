#pragma once

#include <string_view>

#include "dkfac/core/context.h"
#include "dkfac/core/error.h"
#include "dkfac/core/tensor_view.h"

/// Argument checks of the operations. `op` is the operation, `name` the argument.
namespace dkfac::detail {

/// Requires a non-null pointer unless the view has no elements.
inline void check_memory(std::string_view op, ConstTensorView x, std::string_view name) {
  DKFAC_CHECK(x.raw() != nullptr || x.numel() == 0, "[", op, "] ", name, " ", x.shape(),
              " is a null pointer; pass the memory that holds it");
}

/// Requires memory on the device of the context.
inline void check_device(std::string_view op, const Context& ctx, ConstTensorView x,
                         std::string_view name) {
  check_memory(op, x, name);
  DKFAC_CHECK(x.device() == ctx.device(), "[", op, "] ", name, " is on ", x.device(),
              ", the context on ", ctx.device(), "; copy it there first");
}

/// Requires f64 or f32, the computing dtypes.
inline void check_computing(std::string_view op, ConstTensorView x, std::string_view name) {
  DKFAC_CHECK(x.dtype() == DType::f64 || x.dtype() == DType::f32, "[", op, "] ", name, " is ",
              x.dtype(), "; it must be f64 or f32");
}

inline void check_floating(std::string_view op, ConstTensorView x, std::string_view name) {
  DKFAC_CHECK(x.dtype() != DType::i32, "[", op, "] ", name, " is i32; it must be floating");
}

inline void check_dtype(std::string_view op, ConstTensorView x, std::string_view name,
                        DType dtype) {
  DKFAC_CHECK(x.dtype() == dtype, "[", op, "] ", name, " is ", x.dtype(), "; it must be ", dtype);
}

inline void check_shape(std::string_view op, ConstTensorView x, std::string_view name,
                        const Shape& shape) {
  DKFAC_CHECK(x.shape() == shape, "[", op, "] ", name, " is ", x.shape(), "; it must be ", shape);
}

/// Requires two dimensions and a unit stride along the second one.
inline void check_matrix(std::string_view op, ConstTensorView x, std::string_view name) {
  DKFAC_CHECK(x.ndim() == 2, "[", op, "] ", name, " is ", x.shape(), "; it must be a matrix");
  DKFAC_CHECK(x.dim(1) <= 1 || x.stride(1) == 1, "[", op, "] ", name, " ", x.shape(),
              " has column stride ", x.stride(1), "; it must be 1, so copy it first");
  DKFAC_CHECK(x.dim(0) <= 1 || x.stride(0) >= x.dim(1), "[", op, "] ", name, " ", x.shape(),
              " has row stride ", x.stride(0), "; it must be at least the number of columns");
}

inline void check_square(std::string_view op, ConstTensorView x, std::string_view name) {
  check_matrix(op, x, name);
  DKFAC_CHECK(x.dim(0) == x.dim(1), "[", op, "] ", name, " is ", x.shape(), "; it must be square");
}

inline void check_contiguous(std::string_view op, ConstTensorView x, std::string_view name) {
  DKFAC_CHECK(x.is_contiguous(), "[", op, "] ", name, " ", x.shape(),
              " has gaps between its elements; copy it first");
}

/// Requires a result or counter of one element, with any number of dimensions.
inline void check_scalar(std::string_view op, ConstTensorView x, std::string_view name) {
  DKFAC_CHECK(x.numel() == 1, "[", op, "] ", name, " is ", x.shape(), "; it must have one element");
}

}  // namespace dkfac::detail
