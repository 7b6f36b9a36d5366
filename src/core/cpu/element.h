#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "dkfac/core/error.h"
#include "dkfac/core/half_bits.h"
#include "dkfac/core/tensor_view.h"

/// Element types in loops: dispatch on a dtype, loads, stores, results.
namespace dkfac::cpu {

template <class T>
using Type = std::type_identity<T>;

/// f(Type<T>) for the computing dtypes.
template <class F>
void visit_computing(DType dtype, F&& f) {
  if (dtype == DType::f64) return f(Type<double>{});
  if (dtype == DType::f32) return f(Type<float>{});
  throw InvalidArgument(detail::concat("[ops] no loop computes in ", dtype));
}

template <class F>
void visit_floating(DType dtype, F&& f) {
  if (dtype == DType::f16) return f(Type<f16>{});
  if (dtype == DType::bf16) return f(Type<bf16>{});
  visit_computing(dtype, f);
}

template <class F>
void visit_any(DType dtype, F&& f) {
  if (dtype == DType::i32) return f(Type<std::int32_t>{});
  visit_floating(dtype, f);
}

template <class T>
inline constexpr bool is_half = std::is_same_v<T, f16> || std::is_same_v<T, bf16>;

/// Exact where Wide holds all of T.
template <class Wide, class T>
[[nodiscard]] inline Wide load(T x) noexcept {
  if constexpr (is_half<T>) {
    return static_cast<Wide>(detail::widen(x));
  } else {
    return static_cast<Wide>(x);
  }
}

/// One rounding, to nearest even.
template <class T, class Wide>
[[nodiscard]] inline T store(Wide x) noexcept {
  if constexpr (is_half<T>) {
    return detail::narrow<T>(x);
  } else {
    return static_cast<T>(x);
  }
}

/// 1 for NaN and Inf. One comparison, which is false for NaN.
template <class T>
[[nodiscard]] inline std::int32_t is_bad(T x) noexcept {
  return !(std::abs(x) <= std::numeric_limits<T>::max());
}

/// Writes a result of f64 arithmetic into out[0] of dtype f64 or f32.
inline void store_scalar(TensorView out, double value) {
  visit_computing(out.dtype(), [&]<class T>(Type<T>) { *out.data<T>() = static_cast<T>(value); });
}

/// counter[0] (f32) += count.
inline void add_count(TensorView counter, std::int64_t count) {
  *counter.data<float>() += static_cast<float>(count);
}

}  // namespace dkfac::cpu
