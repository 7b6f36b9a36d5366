#pragma once

#include <span>
#include <vector>

#include "dkfac/core/layer_spec.h"
#include "dkfac/kfac/assignment.h"
#include "dkfac/kfac/options.h"

#include "kfac/inverse/statistic_size.h"

namespace dkfac::kfac {

/// CurvatureBytes of one factor of a layer, or of the Fisher of a normalisation.
[[nodiscard]] CurvatureBytes statistic_bytes(const LayerSpec& spec, const CurvatureOptions& options,
                                             StatisticKind kind, Device device);

/// The ranks of a layer's column: its workers. workers: how many.
[[nodiscard]] std::vector<int> column_of(int owner, int workers, int world_size);

/// Bytes of curvature that a rank keeps between steps.
struct KeptBytes {
  double averages = 0, earlier = 0, inverses = 0;
};
/// Adds what each rank keeps of a layer. A rank that inverts a factor and is no worker of the layer
/// keeps that inverse too: it is the last good one where a rebuild fails.
void add_kept(const LayerSpec& spec, const LayerOwners& owners, const CurvatureOptions& options,
              Device device, int workers, std::span<KeptBytes> ranks);

}  // namespace dkfac::kfac
