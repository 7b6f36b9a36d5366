#pragma once

#include <string>
#include <string_view>

#include "dkfac/nn/layers.h"

namespace dkfac::nn {

/// Throws InvalidArgument for an invalid alpha of CELU. `op` is the kind of the layer.
void check_activation(std::string_view op, const Activation& activation);
/// Returns "ReLU", "CELU 0.3", or an empty string.
[[nodiscard]] std::string describe(const Activation& activation);

}  // namespace dkfac::nn
