#include "kfac/inverse/refresh.h"

#include <algorithm>

#include "dkfac/core/error.h"
#include "dkfac/core/ops.h"

#include "core/shared/read_back.h"
#include "kfac/inverse/backend_refresh.h"

namespace dkfac::kfac {
namespace {

bool all_valid(Context& ctx, const Factor& factor) {
  return std::ranges::all_of(read_back<double>(ctx, factor.shifts), [](double s) { return s > 0; });
}

void forget_scales(const RefreshTask& task) {
  if (task.factor->has_values()) task.layer->scale_statistics = 0;
}

void keep_outcome(Context& ctx, const RefreshTask& task) {
  Factor& factor = *task.factor;
  factor.failures = task.stage == InverseStage::kept ? factor.failures + 1 : 0;
  factor.valid = task.stage != InverseStage::kept || all_valid(ctx, factor);
}

/// damping_traces(), or those that were sent where the average is another rank's.
ConstTensorView traces_of(Context& ctx, const Factor& factor, bool weighted, int groups,
                          Scratch& scratch) {
  if (factor.traces.is_set()) return factor.traces.view();
  const TensorView traces = scratch.take({groups}, DType::f64);
  damping_traces(ctx, factor, weighted, traces);
  return traces;
}

/// Sets Factor::requested_damping of all groups of both factors (BatchNorm: of G).
void set_requested_damping(Context& ctx, const CurvatureOptions& options, LayerCurvature& layer) {
  Factor &a = layer.a, &g = layer.g;
  if (!a.is_set() && options.damping > 0)
    return ops::fill(ctx, g.requested_damping, options.norm_damping * options.damping);
  Scratch scratch(ctx);
  const int groups = damped_groups(a, g);
  const bool weighted = a.is_set() && options.damping == 0;
  const ConstTensorView traces_g = traces_of(ctx, g, weighted, groups, scratch);
  if (!a.is_set())
    return kernels::request_relative(
        ctx, {options.norm_damping * options.relative_damping, traces_g.data<double>(), g.dim,
              g.requested_damping.data<double>()});
  const ConstTensorView traces_a = traces_of(ctx, a, false, groups, scratch);
  kernels::request_damping(
      ctx, groups,
      {options.factor_damping(), traces_a.data<double>(), traces_g.data<double>(), a.width(),
       g.width(), a.requested_damping.data<double>(), g.requested_damping.data<double>(),
       options.refresh.staleness == Staleness::adaptive, options.relative_damping});
  for (Factor* factor : {&a, &g}) {
    const TensorView all = factor->requested_damping;
    if (factor->has_blocks())
      ops::copy(ctx, {all.raw(), all.dtype(), all.shape(), {0}, all.device()}, all);
  }
}

/// Runs the fallback stages for the groups of a factor on the device whose first stage failed.
void fall_back(Context& ctx, RefreshTask& task, ConstTensorView group_stages) {
  Factor& factor = *task.factor;
  std::vector<std::int32_t> stages{static_cast<std::int32_t>(InverseStage::kept)};
  if (factor.groups > 1) stages = read_back<std::int32_t>(ctx, group_stages);
  const auto requested = read_back<double>(ctx, factor.requested_damping);
  task.stage = InverseStage::damped;
  for (int group = 0; group < factor.groups; ++group) {
    const auto at = static_cast<std::size_t>(group);
    InverseResult result{.stage = static_cast<InverseStage>(stages[at])};
    if (result.stage == InverseStage::kept) {
      const FactorGroup block = group_of(factor, group);
      const bool zero = requested[at] < 0 && !factor.has_values();
      result = zero ? invert_identity(ctx, block, -requested[at])
                    : rebuild_inverse(ctx, block, requested[at]);
      if (result.stage == InverseStage::kept && factor.failed_group < 0)
        factor.failed_group = group;
      if (result.stage != InverseStage::kept)
        ops::fill(ctx, factor.shifts.view().slice(0, group, 1), result.shift);
    }
    task.stage = std::max(task.stage, result.stage);
    task.written = task.written || result.stage != InverseStage::kept;
  }
}

}  // namespace

FactorGroup group_of(Factor& factor, int group) {
  return {.form = factor.form,
          .average = average_of(factor, group),
          .inverse =
              factor.inverse.view().slice(0, group, 1).reshape({factor.factorised(), factor.dim}),
          .values =
              factor.has_values() ? factor.values.view().slice(0, group, 1).flat() : TensorView{}};
}

void damping_traces(Context& ctx, const Factor& factor, bool weighted, TensorView traces) {
  factor.form->trace(ctx, factor, factor.average, traces);
  if (!weighted) return;
  Scratch scratch(ctx);
  const TensorView squares = scratch.take(traces.shape(), DType::f64);
  factor.form->squares(ctx, factor, factor.average, squares);
  kernels::weigh_traces(ctx, traces.numel(),
                        {squares.data<double>(), factor.width(), traces.data<double>()});
}

void add_refresh_tasks(Context& ctx, const CurvatureOptions& options, LayerCurvature& layer,
                       RefreshParts parts, std::vector<RefreshTask>& tasks) {
  const bool a = layer.a.is_set() && parts.a && layer.a.stale;
  const bool g = layer.g.is_set() && parts.g && layer.g.stale;
  if (!a && !g) return;
  set_requested_damping(ctx, options, layer);
  // Beside eigenvectors lambda is added where the diagonal is applied, which needs no other one
  // where G is zero.
  if (layer.a.is_set() && layer.a.is_diagonal() && layer.g.has_values()) {
    Scratch scratch(ctx);
    const TensorView size = scratch.take({1}, DType::f64);
    ops::max_abs(ctx, layer.a.requested_damping, size);
    ops::copy(ctx, size, layer.a.requested_damping);
  }
  if (a) tasks.push_back({&layer, &layer.a});
  if (g) tasks.push_back({&layer, &layer.g});
}

void RefreshWorkers::offer(std::span<RefreshTask> tasks, std::size_t task,
                           ConstTensorView inverse) {
  kernels::store_offered(ctx_, state_, tasks, task, inverse);
}

std::span<const RefreshTask> RefreshWorkers::run(std::span<RefreshTask> tasks, std::int64_t wide) {
  const std::span<const RefreshTask> finished = start(tasks, wide);
  join();
  return finished;
}

void RefreshWorkers::join() {
  if (state_.streams > 0) cuda::join_rebuilds(ctx_, state_);
}

std::span<const RefreshTask> RefreshWorkers::start(std::span<RefreshTask> tasks,
                                                   std::int64_t wide) {
  if (!ctx_.device().is_cuda()) {
    cpu::rebuild_all(ctx_, state_, tasks, wide);
    for (const RefreshTask& task : tasks) {
      task.factor->stale = false;
      keep_outcome(ctx_, task);
      if (task.written) forget_scales(task);
    }
    return tasks;
  }
  DKFAC_CHECK(state_.running.empty(), "[refresh] ", state_.running.size(),
              " rebuilds under way have not been collected; call collect() with their stages");
  if (tasks.empty()) return {};
  cuda::rebuild_all(ctx_, state_, tasks, wide);
  state_.running.assign(tasks.begin(), tasks.end());
  for (const RefreshTask& task : tasks) task.factor->stale = false;
  return {};
}

template <class Number>
std::int64_t RefreshWorkers::over_streams(Number&& number) const {
  std::int64_t sum = 0;
  if (!ctx_.device().is_cuda()) return sum;
  for (const Context& side : state_.contexts) sum += static_cast<std::int64_t>(number(side));
  return sum;
}

std::int64_t RefreshWorkers::scratch_growths() const {
  return over_streams([](const Context& side) { return side.scratch_growths(); });
}
std::int64_t RefreshWorkers::scratch_bytes() const {
  return over_streams([](const Context& side) { return side.scratch_bytes(); });
}
std::int64_t RefreshWorkers::library_bytes() const {
  return over_streams([](const Context& side) { return side.library_bytes(); });
}

ConstTensorView RefreshWorkers::stages() const {
  if (state_.running.empty()) return {};
  return state_.stages.view().slice(0, 0, static_cast<std::int64_t>(state_.running.size()));
}

std::span<const RefreshTask> RefreshWorkers::collect(std::span<const std::int32_t> stages) {
  DKFAC_CHECK(stages.size() == state_.running.size(), "[refresh] ", stages.size(), " stages for ",
              state_.running.size(), " rebuilds under way; pass what stages() holds");
  state_.collected.swap(state_.running);
  state_.running.clear();
  std::int64_t first = 0;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    RefreshTask& task = state_.collected[i];
    task.stage = static_cast<InverseStage>(stages[i]);
    task.written = task.stage != InverseStage::kept;
    task.factor->failed_group = -1;
    if (!task.written)
      fall_back(ctx_, task, state_.group_stages.view().slice(0, first, task.factor->groups));
    if (task.written) forget_scales(task);
    first += task.factor->groups;
    keep_outcome(ctx_, task);
  }
  return state_.collected;
}

}  // namespace dkfac::kfac
