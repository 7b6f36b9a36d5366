#include "kfac/distribution/plan_owners.h"

namespace dkfac::kfac {

std::vector<LayerOwners> plan_owners(std::span<const LayerSpec> specs,
                                     const CurvatureOptions& options, const CostModel& costs,
                                     int world_size, Device device) {
  std::vector<FactorLoads> loads;
  for (const LayerSpec& spec : specs)
    loads.push_back(options.distribution.calibrate
                        ? factor_seconds(costs, spec, options, device)
                        : factor_loads(spec, options.dtype, options.inverse.block_width));
  // EKFAC's second moments are along the eigenvectors of both factors.
  if (options.distribution.split_factors && options.inverse.method != InverseMethod::ekfac)
    return assign_factors(loads, world_size);
  std::vector<LayerLoad> whole;
  for (const FactorLoads& load : loads) whole.push_back({load.whole(), load.bytes});
  std::vector<LayerOwners> owners;
  for (const int owner : assign(whole, world_size)) owners.push_back({owner, owner, owner});
  return owners;
}

}  // namespace dkfac::kfac
