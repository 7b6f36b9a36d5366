#pragma once

#include <cstdint>

namespace dkfac::nn {

enum class ActivationKind : std::uint8_t {
  none,
  relu,  ///< max(x, 0); NaN stays NaN.
  celu   ///< x for x >= 0, else alpha (exp(x/alpha) - 1) (Barron 2017).
};
struct Activation {
  ActivationKind kind = ActivationKind::none;
  double alpha = 1;  ///< Parameter of celu, > 0.
};

}  // namespace dkfac::nn
