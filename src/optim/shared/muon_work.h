#pragma once

#include <algorithm>
#include <cstdint>

#include "dkfac/optim/optimizer.h"

namespace dkfac::optim {

/// Floating-point operations of newton_schulz() of a matrix: two triangles and a product of each
/// iteration.
[[nodiscard]] inline double newton_schulz_flops(std::int64_t rows, std::int64_t columns) {
  const auto width = static_cast<double>(std::min(rows, columns));
  const auto length = static_cast<double>(std::max(rows, columns));
  return NewtonSchulz{}.iterations * width * width * (3 * length + width);
}

}  // namespace dkfac::optim
