#pragma once

#include <cmath>
#include <limits>

#include "dkfac/nn/layers.h"

#include "core/shared/cuda/device_code.h"
#include "nn/backends/exponential.h"

/// Smooth activations for use inside vectorised loops and kernels. value(x) is the activation;
/// derivative(kept) is that of the input, from what keeps_output() says. NaN stays NaN.
namespace dkfac::nn {

/// Returns whether derivatives come from the output; else from the input, where the activation is
/// not monotone.
[[nodiscard]] constexpr bool keeps_output(SmoothKind kind) {
  return kind == SmoothKind::tanh || kind == SmoothKind::sigmoid;
}

template <class T>
struct TanhOf {
  [[nodiscard]] DKFAC_HD T value(T x) const {
    const T e = expm1_negative(T{-2} * std::abs(x));
    return std::copysign(e / (T{2} + e), x);
  }
  [[nodiscard]] DKFAC_HD T derivative(T y) const { return (T{1} - y) * (T{1} + y); }
};

/// 1 / (1 + exp(-x)), without overflow.
template <class T>
[[nodiscard]] DKFAC_HD T sigmoid_of(T x) {
  const T e = exp_negative(-std::abs(x));
  return (x < T{0} ? e : T{1}) / (T{1} + e);
}

template <class T>
struct SigmoidOf {
  [[nodiscard]] DKFAC_HD T value(T x) const { return sigmoid_of(x); }
  [[nodiscard]] DKFAC_HD T derivative(T y) const { return y * (T{1} - y); }
};

template <class T>
struct SiluOf {
  [[nodiscard]] DKFAC_HD T value(T x) const { return held(x) * sigmoid_of(x); }
  [[nodiscard]] DKFAC_HD T derivative(T x) const {
    const T y = sigmoid_of(x);
    return y + held(x) * y * sigmoid_of(-x);
  }
  /// x, no less than where exp_negative() ends.
  [[nodiscard]] DKFAC_HD static T held(T x) {
    return x < kLowestExponent<T> ? kLowestExponent<T> : x;
  }
};

template <class T>
struct GeluOf {
  [[nodiscard]] DKFAC_HD T value(T x) const {
    const T above = normal_tail(held(std::abs(x))).above;
    return held_below(x) * (x < T{0} ? above : T{1} - above);
  }
  [[nodiscard]] DKFAC_HD T derivative(T x) const {
    const auto [density, above] = normal_tail(held(std::abs(x)));
    return (x < T{0} ? above : T{1} - above) + held_below(x) * density;
  }
  /// The tail at kEnd is the least that is not subnormal.
  static constexpr T kEnd = std::numeric_limits<T>::digits < 53 ? T{13} : T{37};
  [[nodiscard]] DKFAC_HD static T held(T u) { return u > kEnd ? kEnd : u; }
  [[nodiscard]] DKFAC_HD static T held_below(T x) { return x < -kEnd ? -kEnd : x; }
};

/// Calls f(the functor of this activation over T).
template <class T, class F>
void for_smooth(SmoothKind kind, const F& f) {
  switch (kind) {
    case SmoothKind::tanh:
      return f(TanhOf<T>{});
    case SmoothKind::sigmoid:
      return f(SigmoidOf<T>{});
    case SmoothKind::gelu:
      return f(GeluOf<T>{});
    case SmoothKind::silu:
      return f(SiluOf<T>{});
  }
}

}  // namespace dkfac::nn
