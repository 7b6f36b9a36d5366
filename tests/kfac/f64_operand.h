#pragma once

#include "dkfac/kfac/statistics.h"

namespace dkfac::kfac {

/// Statistics from operands as they are.
inline const Operand kF64{DType::f64, 1};

}  // namespace dkfac::kfac
