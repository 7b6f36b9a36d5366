#pragma once

#include <type_traits>

#include "dkfac/core/error.h"
#include "dkfac/core/types.h"

namespace dkfac::nn {

/// What activations of `dtype` are computed in, and the dtype of the parameters and statistics of a
/// layer that takes them: f64 for f64, f32 for all others.
[[nodiscard]] inline DType compute_dtype(DType dtype) {
  return dtype == DType::f64 ? DType::f64 : DType::f32;
}

/// The same as types: what elements held as T are computed with.
template <class T>
using Computed = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// f(T{}) with T the element type of a computing dtype.
template <class F>
decltype(auto) for_dtype(DType dtype, F&& f) {
  DKFAC_CHECK(dtype == DType::f64 || dtype == DType::f32, "[nn] dtype is ", dtype,
              "; it must be f64 or f32");
  if (dtype == DType::f64) return f(double{});
  return f(float{});
}

}  // namespace dkfac::nn
