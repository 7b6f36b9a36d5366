#pragma once

#include <cstdint>

#include "core/shared/cuda/device_code.h"

namespace dkfac::optim {

/// The optimizer state of one element, indexed by slot.
template <class T>
struct ElementSlots {
  T* first;
  std::int64_t stride;  ///< Elements between two slots of one parameter.
  [[nodiscard]] DKFAC_HD T& operator[](std::int64_t s) const { return first[s * stride]; }
};

}  // namespace dkfac::optim
