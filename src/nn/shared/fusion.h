#pragma once

#include "dkfac/nn/norm_layers.h"

namespace dkfac::nn {

/// As a residual block does whose body ends in `norm`: the next forward() gives
/// activation(normalised + addend) in its one pass. addend: of the output's shape and dtype. Throws
/// InvalidArgument for a layer with an activation of its own.
void add_next(BatchNorm2d& norm, ConstTensorView addend, const Activation& activation);

}  // namespace dkfac::nn
