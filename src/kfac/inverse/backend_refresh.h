#pragma once

#include <cstdint>
#include <span>

#include "core/shared/kernel.h"
#include "kfac/inverse/refresh.h"

/// Kernels that rebuild inverses.
namespace dkfac::kfac {

/// Sets Factor::requested_damping of all groups of both factors (BatchNorm: of G).
DKFAC_KERNEL(void, set_requested_damping, const CurvatureOptions& options, LayerCurvature& layer);
/// cpu: runs all stages, with the results in `tasks`. cuda: enqueues the first stage of all tasks
/// and leaves the tasks' stages in `state`.
DKFAC_KERNEL(void, rebuild_all, RefreshState& state, std::span<RefreshTask> tasks,
             std::int64_t wide);

}  // namespace dkfac::kfac
