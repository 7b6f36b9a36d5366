#pragma once

#include "dkfac/nn/layers.h"

#include "core/shared/cuda/device_code.h"
#include "nn/backends/exponential.h"

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
