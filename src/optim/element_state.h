#pragma once

#include <cstdint>

#include "core/shared/cuda/device_code.h"

namespace dkfac::optim {

/// The optimizer state of one element: one number of each state tensor of its parameter.
template <class T>
struct ElementState {
  T* first;
  std::int64_t stride;  ///< Elements between the state tensors of one parameter.
  [[nodiscard]] DKFAC_HD T& operator[](std::int64_t s) const { return first[s * stride]; }
};

/// The pass of a parameter whose rate and weight decay have these multipliers.
template <class Pass>
[[nodiscard]] DKFAC_HD Pass scaled(Pass pass, double rate, double decay) {
  pass.lr *= rate;
  pass.weight_decay *= decay;
  return pass;
}

}  // namespace dkfac::optim
