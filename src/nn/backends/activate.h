#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "dkfac/nn/layers.h"

#include "core/shared/cuda/device_code.h"

/// Activation functions for use inside vectorised loops and kernels. value(x) is the activation;
/// backward(y, g) is the gradient of its input, from its output y and the gradient g of y.
namespace dkfac::nn {

template <class T>
struct Identity {
  [[nodiscard]] DKFAC_HD T value(T x) const { return x; }
  [[nodiscard]] DKFAC_HD T backward(T, T g) const { return g; }
};

template <class T>
struct Rectify {
  [[nodiscard]] DKFAC_HD T value(T x) const { return x < T{0} ? T{0} : x; }
  [[nodiscard]] DKFAC_HD T backward(T y, T g) const { return y > T{0} ? g : T{0}; }
};

/// exp(x) - 1 for x <= 0, without a branch or a call, to a few units in the last place: x = n ln 2
/// + r, exp(x) - 1 = 2^n (exp(r) - 1) + (2^n - 1).
[[nodiscard]] DKFAC_HD inline float expm1_negative(float x) {
  constexpr float kLowest = -20.0F;        // exp(x) is below half a unit in the last place of 1.
  constexpr float kRounder = 12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer.
  constexpr float kLn2High = 0.693145752F, kLn2Low = 1.42860677e-6F;
  x = x < kLowest ? kLowest : x;
  const float shifted = x * 1.44269504F + kRounder;
  const float n = shifted - kRounder;
  const float r = (x - n * kLn2High) - n * kLn2Low;
  const float tail = 1.0F / 6 + r * (1.0F / 24 + r * (1.0F / 120 + r * (1.0F / 720 + r / 5040)));
  const float small = r + r * r * (0.5F + r * tail);
  const auto exponent = std::bit_cast<std::uint32_t>(shifted) << 23U;
  const float power = std::bit_cast<float>(exponent + 0x3F800000U);
  return power * small + (power - 1.0F);
}
[[nodiscard]] DKFAC_HD inline double expm1_negative(double x) { return std::expm1(x); }

template <class T>
struct CeluOf {
  T alpha, inverse;
  [[nodiscard]] DKFAC_HD T value(T x) const {
    const T below = alpha * expm1_negative(x < T{0} ? x * inverse : T{0});
    // A NaN is not below 0 and stays NaN.
    return x < T{0} ? below : x;
  }
  [[nodiscard]] DKFAC_HD T backward(T y, T g) const {
    const T below = g * (T{1} + y * inverse);
    return y < T{0} ? below : g;
  }
};

/// Calls f(the functor of this activation over T).
template <class T, class F>
void for_activation(const Activation& activation, const F& f) {
  switch (activation.kind) {
    case ActivationKind::none:
      return f(Identity<T>{});
    case ActivationKind::relu:
      return f(Rectify<T>{});
    case ActivationKind::celu:
      return f(CeluOf<T>{static_cast<T>(activation.alpha), static_cast<T>(1 / activation.alpha)});
  }
}

}  // namespace dkfac::nn
