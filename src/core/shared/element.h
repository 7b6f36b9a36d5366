#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "dkfac/core/error.h"
#include "dkfac/core/tensor_view.h"

#include "core/shared/cuda/device_code.h"
#include "core/shared/half_bits.h"

/// Element types of loops and kernels: dispatch on a dtype, loads, stores.
namespace dkfac::element {

template <class T>
using Type = std::type_identity<T>;

/// Calls f(Type<T>) for the computing dtype `dtype`.
template <class F>
void visit_computing(DType dtype, F&& f) {
  if (dtype == DType::f64) return f(Type<double>{});
  if (dtype == DType::f32) return f(Type<float>{});
  throw InvalidArgument(detail::concat("[dtype] a tensor is ", dtype, "; it must be f64 or f32"));
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

/// Converts to Wide, exactly if Wide holds all values of T.
template <class Wide, class T>
[[nodiscard]] DKFAC_HD inline Wide load(T x) noexcept {
  if constexpr (is_half<T>) {
    return static_cast<Wide>(detail::widen(x));
  } else {
    return static_cast<Wide>(x);
  }
}

/// Converts to T with one rounding, to nearest even.
template <class T, class Wide>
[[nodiscard]] DKFAC_HD inline T store(Wide x) noexcept {
  if constexpr (is_half<T>) {
    return detail::narrow<T>(x);
  } else {
    return static_cast<T>(x);
  }
}

/// Rounds x to a value of R held in T; values out of the range of a 16-bit R saturate.
template <class R, class T>
[[nodiscard]] DKFAC_HD inline T rounded_to(T x) noexcept {
  if constexpr (is_half<R>) {
    return detail::quantize<R>(x);
  } else {
    return static_cast<T>(static_cast<R>(x));
  }
}

/// Whether D(scale * x) is rounded only once with the product in f32, for every x of f32. Then the
/// product is exact, or what underflows in f32 is 0 in D anyway.
template <class D>
[[nodiscard]] inline bool exact_in_f32(double scale) {
  if (scale == 1.0) return true;
  if constexpr (std::is_same_v<D, bf16> || std::is_same_v<D, double>) return false;
  int exponent = 0;
  return std::frexp(scale, &exponent) == 0.5 && std::abs(exponent) < 100;
}

/// Returns 1 for NaN and Inf, else 0, by one comparison, which is false for NaN.
template <class T>
[[nodiscard]] DKFAC_HD inline std::int32_t is_bad(T x) noexcept {
  return !(std::abs(x) <= std::numeric_limits<T>::max());
}

}  // namespace dkfac::element
