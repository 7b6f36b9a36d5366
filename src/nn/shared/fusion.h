#pragma once

#include "dkfac/nn/norm_layers.h"

namespace dkfac::nn {

/// Makes the next forward() of `norm` compute activation(normalised + addend) in one pass, as in a
/// residual block whose body ends in `norm`. addend: of the output's shape and dtype. Throws
/// InvalidArgument for a layer with an activation of its own.
void add_next(BatchNorm2d& norm, ConstTensorView addend, const Activation& activation);

}  // namespace dkfac::nn
