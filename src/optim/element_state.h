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

}  // namespace dkfac::optim
