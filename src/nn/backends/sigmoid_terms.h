#pragma once

#include <cmath>
#include <limits>

#include "core/shared/cuda/device_code.h"
#include "nn/backends/exponential.h"

/// Terms of the sigmoid cross-entropy of one output, for use inside vectorised loops and kernels.
namespace dkfac::nn {

/// What an output z with target t adds.
template <class T>
struct SigmoidTerms {
  T residual;  ///< p - t, p = sigmoid(z).
  T loss;      ///< max(z, 0) - z t + log(1 + exp(-|z|)), which is -t log p - (1-t) log(1-p).
};
template <class T>
[[nodiscard]] DKFAC_HD SigmoidTerms<T> sigmoid_terms(T z, T t) {
  const T e = exp_negative(-std::abs(z)), inverse = T{1} / (T{1} + e);
  const T p = (z < T{0} ? e : T{1}) * inverse;
  return {p - t, (z < T{0} ? T{0} : z) - z * t + log1p_small(e, inverse)};
}

/// -x log x, 0 at 0; NaN for x < 0.
template <class T>
[[nodiscard]] DKFAC_HD T entropy_part(T x) {
  const T value = -x * log_small(x);
  const T outside = x == T{0} ? T{0} : std::numeric_limits<T>::quiet_NaN();
  return x > T{0} ? value : outside;
}
/// The least loss of an output with target t: the entropy of t. NaN outside [0, 1].
template <class T>
[[nodiscard]] DKFAC_HD T target_entropy(T t) {
  return entropy_part(t) + entropy_part(T{1} - t);
}

}  // namespace dkfac::nn
