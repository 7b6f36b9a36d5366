#pragma once

#include "dkfac/core/context.h"
#include "dkfac/kfac/factors.h"

#include "kfac/inverse/layer_curvature.h"

namespace dkfac::kfac {

/// Copies averages and inverses to the host; waits for the device. An inverse is formed explicitly,
/// whatever its stored form, except eigenvectors.
void copy_factors(Context& ctx, const LayerCurvature& own, LayerFactors& out);

}  // namespace dkfac::kfac
