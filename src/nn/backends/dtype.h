#pragma once

#include <type_traits>

#include "dkfac/core/types.h"

#include "core/shared/element.h"

namespace dkfac::nn {

/// Dtype in which activations of `dtype` are computed, also that of the parameters and statistics
/// of their layer: f64 for f64, f32 for all others.
[[nodiscard]] inline DType compute_dtype(DType dtype) {
  return dtype == DType::f64 ? DType::f64 : DType::f32;
}

/// Compile-time form of compute_dtype(): the type that elements stored as T are computed in.
template <class T>
using Computed = std::conditional_t<std::is_same_v<T, double>, double, float>;

using element::Type;
using element::visit_computing;
using element::visit_floating;

}  // namespace dkfac::nn
