#pragma once

#include <span>
#include <vector>

#include "dkfac/core/layer_spec.h"
#include "dkfac/kfac/assignment.h"
#include "dkfac/kfac/options.h"

#include "kfac/distribution/cost_model.h"

namespace dkfac::kfac {

/// Chooses the ranks of each layer, as DistributionOptions say: by the costs with `calibrate`, else
/// by counted work. A pure function, equal on every rank. options: with_block_width().
[[nodiscard]] std::vector<LayerOwners> plan_owners(std::span<const LayerSpec> specs,
                                                   const CurvatureOptions& options,
                                                   const CostModel& costs, int world_size,
                                                   Device device);

}  // namespace dkfac::kfac
