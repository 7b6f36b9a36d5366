#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/shared/kernel.h"
#include "kfac/inverse/damping_split.h"
#include "kfac/inverse/refresh.h"

/// Kernels that rebuild inverses.
namespace dkfac::kfac {

/// Calls weigh(group), request(group) for `groups` groups.
DKFAC_KERNEL(void, weigh_traces, std::int64_t groups, const WeighTraces& weigh);
DKFAC_KERNEL(void, request_damping, std::int64_t groups, const RequestDamping& request);
DKFAC_KERNEL(void, request_relative, const RequestRelative& request);
/// cpu: runs all stages, with the results in `tasks`. cuda: enqueues the first stage of all tasks
/// on side streams and leaves the tasks' stages in `state`; join_rebuilds() follows.
DKFAC_KERNEL(void, rebuild_all, RefreshState& state, std::span<RefreshTask> tasks,
             std::int64_t wide);
/// RefreshWorkers::offer().
DKFAC_KERNEL(void, store_offered, RefreshState& state, std::span<RefreshTask> tasks,
             std::size_t task, ConstTensorView inverse);

namespace cuda {

/// Lets the context's stream wait for rebuild_all(), and completes the stages of state.running.
DKFAC_DEVICE_KERNEL(void, join_rebuilds, RefreshState& state);

}  // namespace cuda
}  // namespace dkfac::kfac
