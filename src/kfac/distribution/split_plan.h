#pragma once

#include <span>
#include <vector>

#include "dkfac/core/device.h"
#include "dkfac/core/layer_spec.h"
#include "dkfac/kfac/assignment.h"
#include "dkfac/kfac/options.h"

#include "kfac/inverse/factor_plan.h"

/// Which factors several ranks invert together, and what that costs each of them. Pure functions,
/// equal on every rank.
namespace dkfac::kfac {

/// Operations of each of `ranks` ranks that invert a factor together (split_flops()), as a fraction
/// of those of one that inverts it alone; 1 for one rank.
[[nodiscard]] double split_part(const FactorPlan& plan, int ranks);

/// The loads of a layer as the ranks share them: `a` and `g` become what each of the ranks does
/// that invert a factor together.
[[nodiscard]] FactorLoads shared_load(FactorLoads load, const LayerSpec& spec,
                                      const CurvatureOptions& options, Device device, int ranks_a,
                                      int ranks_g);

/// With split_wide, shared_load() of each layer. A factor gets as few of 1, 2, 4 and 8 ranks as
/// give each at most the mean work of a rank, by counted work also with `calibrate`: the bits of an
/// inverse depend on it. At most world_size and split_ranks(); where these do not suffice, the
/// number with the least work.
[[nodiscard]] std::vector<FactorLoads> shared_loads(std::vector<FactorLoads> loads,
                                                    std::span<const LayerSpec> specs,
                                                    const CurvatureOptions& options, int world_size,
                                                    Device device);

}  // namespace dkfac::kfac
