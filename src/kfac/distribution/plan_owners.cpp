#include "kfac/distribution/plan_owners.h"

#include <utility>

#include "comm/collective/worker_grid.h"
#include "kfac/distribution/split_plan.h"

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
  const bool apart =
      options.distribution.split_factors && options.inverse.method != InverseMethod::ekfac;
  return assign_factors(shared_loads(std::move(loads), specs, options, world_size, device),
                        world_size, apart,
                        comm::workers_of(options.distribution.grad_worker_fraction, world_size));
}

}  // namespace dkfac::kfac
