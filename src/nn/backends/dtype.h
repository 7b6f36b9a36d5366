#pragma once

#include <type_traits>

#include "dkfac/core/error.h"
#include "dkfac/core/types.h"

namespace dkfac::nn {

/// Dtype in which activations of `dtype` are computed, also that of the parameters and statistics
/// of their layer: f64 for f64, f32 for all others.
[[nodiscard]] inline DType compute_dtype(DType dtype) {
  return dtype == DType::f64 ? DType::f64 : DType::f32;
}

/// Compile-time form of compute_dtype(): the type that elements stored as T are computed in.
template <class T>
using Computed = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// Calls f(T{}) with T the element type of a computing dtype.
template <class F>
decltype(auto) for_dtype(DType dtype, F&& f) {
  DKFAC_CHECK(dtype == DType::f64 || dtype == DType::f32, "[nn] dtype is ", dtype,
              "; it must be f64 or f32");
  if (dtype == DType::f64) return f(double{});
  return f(float{});
}

}  // namespace dkfac::nn
