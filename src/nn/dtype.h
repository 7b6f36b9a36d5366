#pragma once

#include "dkfac/core/error.h"
#include "dkfac/core/types.h"

namespace dkfac::nn {

/// f(T{}) with T the element type of a computing dtype.
template <class F>
decltype(auto) for_dtype(DType dtype, F&& f) {
  DKFAC_CHECK(dtype == DType::f64 || dtype == DType::f32, "[nn] dtype is ", dtype,
              "; it must be f64 or f32");
  if (dtype == DType::f64) return f(double{});
  return f(float{});
}

}  // namespace dkfac::nn
