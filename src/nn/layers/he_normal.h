#pragma once

#include <cmath>

#include "dkfac/core/random.h"
#include "dkfac/core/tensor_view.h"

namespace dkfac::nn {

/// Fills a weight [out,...] with normal values of variance 2 / fan_in (He et al. 2015).
inline void fill_he_normal(TensorView weight, Random& random) {
  const auto fan_in = static_cast<double>(weight.numel() / weight.dim(0));
  fill_normal(weight, 0.0, std::sqrt(2.0 / fan_in), random);
}

}  // namespace dkfac::nn
