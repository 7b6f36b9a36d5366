#pragma once

#include <span>
#include <string>
#include <vector>

#include "dkfac/core/context.h"
#include "dkfac/core/layer_spec.h"
#include "dkfac/kfac/assignment.h"
#include "dkfac/kfac/options.h"

#include "comm/collective/worker_grid.h"
#include "kfac/distribution/cost_model.h"

/// Whether the curvature fits into memory, and whether a step that rebuilds it takes very long.
namespace dkfac::kfac {

/// The layers as every rank plans them.
struct PlannedLayers {
  std::span<const std::string> names;
  std::span<const LayerSpec> specs;
  std::span<const LayerOwners> owners;
  const CurvatureOptions& options;
  int workers = 1, ranks = 1;
  Device device = {};
};

/// Bytes that each rank needs at least: statistics of all layers on their way, averages of the
/// factors it inverts, inverses of these and of the layers it works on, and what the largest
/// rebuild that it takes part in holds before it is accepted.
[[nodiscard]] std::vector<double> memory_need(const PlannedLayers& plan);

/// The memory of one rank: ranks of one group share it.
struct RankMemory {
  double group = 0;
  double available = 0;  ///< Bytes; infinity if unknown.
};
/// Says where the ranks need more memory than there is: sizes, the widest layer, remedies. Empty
/// where all fits.
[[nodiscard]] std::string memory_shortage(const PlannedLayers& plan,
                                          std::span<const RankMemory> memory);
/// Throws InvalidArgument with memory_shortage() on every rank; collective, unless the need is
/// small.
void check_memory(Context& ctx, const comm::WorkerGrid& grid, const PlannedLayers& plan);

/// Says how long the rank with the most work rebuilds inverses, and for which layer, where that is
/// predicted to take more than 2 seconds; else empty.
[[nodiscard]] std::string slow_rebuild(const PlannedLayers& plan, const CostModel& costs);

}  // namespace dkfac::kfac
