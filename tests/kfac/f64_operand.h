#pragma once

#include "dkfac/kfac/statistics.h"

namespace dkfac::kfac {

/// Options whose statistics use operands without rounding.
inline const Operand kF64{DType::f64, 1};

}  // namespace dkfac::kfac
