#pragma once

#include <cstdint>

#include "dkfac/core/ops.h"

namespace dkfac::cpu {

/// patches[m, width] = patches [first, first + m) of x, in the order (sample, row, column).
void fill_panel(const ops::PatchSpec& spec, ConstTensorView x, std::int64_t first,
                TensorView patches);

}  // namespace dkfac::cpu
