#pragma once

#include <string_view>

#include "core/shared/checks.h"

/// Argument checks of the operations, beside those of shared/checks.h.
namespace dkfac {

/// Requires f64 or f32, the computing dtypes.
inline void check_computing(const Caller& caller, std::string_view what, ConstTensorView x) {
  DKFAC_CHECK(x.dtype() == DType::f64 || x.dtype() == DType::f32, caller, what, " is ", x.dtype(),
              "; it must be f64 or f32");
}

inline void check_dtype(const Caller& caller, std::string_view what, ConstTensorView x,
                        DType dtype) {
  DKFAC_CHECK(x.dtype() == dtype, caller, what, " is ", x.dtype(), "; it must be ", dtype);
}

/// Requires two dimensions and a unit stride along the second one.
inline void check_matrix(const Caller& caller, std::string_view what, ConstTensorView x) {
  DKFAC_CHECK(x.ndim() == 2, caller, what, " is ", x.shape(), "; it must be a matrix");
  DKFAC_CHECK(x.dim(1) <= 1 || x.stride(1) == 1, caller, what, ' ', x.shape(),
              " has column stride ", x.stride(1), "; it must be 1, so copy it first");
  DKFAC_CHECK(x.dim(0) <= 1 || x.stride(0) >= x.dim(1), caller, what, ' ', x.shape(),
              " has row stride ", x.stride(0), "; it must be at least the number of columns");
}

inline void check_square(const Caller& caller, std::string_view what, ConstTensorView x) {
  check_matrix(caller, what, x);
  DKFAC_CHECK(x.dim(0) == x.dim(1), caller, what, " is ", x.shape(), "; it must be square");
}

/// Requires a result or counter of one element, with any number of dimensions.
inline void check_scalar(const Caller& caller, std::string_view what, ConstTensorView x) {
  DKFAC_CHECK(x.numel() == 1, caller, what, " is ", x.shape(), "; it must have one element");
}

}  // namespace dkfac
