#include <algorithm>
#include <exception>

#include "dkfac/core/threads.h"
#include "dkfac/kfac/assignment.h"

#include "core/shared/parallel.h"
#include "kfac/inverse/backend_refresh.h"
#include "kfac/inverse/diagonal_factor.h"
#include "kfac/inverse/residual.h"
#include "kfac/inverse/small_groups.h"

namespace dkfac::kfac::cpu {
namespace {

/// Operations below which waking other threads costs more than it saves.
constexpr double kWorthSharing = 4e6;

/// Makes BLAS run on the calling thread in this scope, as it does where factors are distributed
/// over threads.
class OneThread {
 public:
  OneThread() : before_(dkfac::threads()) { set_threads(1); }
  ~OneThread() { set_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

/// Rebuilds a factor; writes valid inverses and leaves the others unchanged.
void rebuild(Context& ctx, RefreshTask& task) {
  Factor& factor = *task.factor;
  const auto* requested = factor.requested_damping.data<double>();
  auto* shifts = factor.shifts.data<double>();
  task.stage = InverseStage::damped;
  factor.failed_group = -1;
  if (factor.is_diagonal()) {
    store_diagonal(ctx, factor);
    task.written = true;
    return;
  }
  const bool small = has_small_groups(factor);
  for (int group = 0; group < factor.groups; ++group) {
    const FactorGroup block = group_of(factor, group);
    const bool zero = requested[group] < 0 && !factor.has_values();
    InverseResult result = zero    ? invert_identity(ctx, block, -requested[group])
                           : small ? invert_small(block, requested[group])
                                   : InverseResult{};
    if (!zero && result.stage == InverseStage::kept)
      result = rebuild_inverse(ctx, block, requested[group]);
    task.stage = std::max(task.stage, result.stage);
    if (result.stage == InverseStage::kept) {
      if (factor.failed_group < 0) factor.failed_group = group;
      continue;
    }
    task.written = true;
    shifts[group] = result.shift;
    factor.stored_form.data<std::int32_t>()[group] = result.form->index;
  }
}

void rebuild_on_threads(Context& ctx, std::vector<Context>& contexts,
                        std::span<RefreshTask* const> tasks, int threads) {
  std::vector<LayerLoad> loads;
  for (const RefreshTask* task : tasks)
    loads.push_back({refresh_operations(*task->factor), task->factor->dim});
  const std::vector<int> thread_of = assign(loads, threads);
  while (static_cast<int>(contexts.size()) < threads)
    contexts.emplace_back(ctx.device(), ContextOptions{.backend = ctx.backend(), .threads = 0});
  std::vector<std::exception_ptr> errors(contexts.size());
  dkfac::cpu::parallel_parts(threads, [&](int thread) {
    const auto t = static_cast<std::size_t>(thread);
    try {
      for (std::size_t i = 0; i < tasks.size(); ++i)
        if (thread_of[i] == thread) rebuild(contexts[t], *tasks[i]);
    } catch (...) {
      errors[t] = std::current_exception();
    }
  });
  for (const std::exception_ptr& error : errors)
    if (error != nullptr) std::rethrow_exception(error);
}

}  // namespace

void weigh_traces(Context&, std::int64_t groups, const WeighTraces& weigh) {
  for (std::int64_t group = 0; group < groups; ++group) weigh(group);
}

void request_damping(Context&, std::int64_t groups, const RequestDamping& request) {
  for (std::int64_t group = 0; group < groups; ++group) request(group);
}

void request_relative(Context&, const RequestRelative& request) { request(0); }

void store_offered(Context& ctx, RefreshState&, std::span<RefreshTask> tasks, std::size_t index,
                   ConstTensorView inverse) {
  RefreshTask& task = tasks[index];
  Factor& factor = *task.factor;
  const FactorGroup block = group_of(factor, 0);
  const double requested = *factor.requested_damping.data<double>();
  const double shift = round_to(factor.inverse.dtype(), requested);
  if (!(requested > 0) || !leaves_room(factor.inverse.dtype(), shift)) return;
  if (!inverts(ctx, {block.average, shift, factor.form == FactorForm::cholesky}, inverse)) return;
  factor.form->commit(ctx, inverse, block.inverse);
  factor.failed_group = -1;
  *factor.shifts.data<double>() = shift;
  *factor.stored_form.data<std::int32_t>() = factor.form->index;
  task.stage = InverseStage::damped;
  task.written = task.offered = true;
}

void rebuild_all(Context& ctx, RefreshState& state, std::span<RefreshTask> tasks,
                 std::int64_t wide) {
  const int threads = dkfac::threads();
  const auto is_wide = [wide](const RefreshTask& task) {
    return !task.offered && task.factor->factorised() > wide;
  };
  const bool wide_first = std::ranges::count_if(tasks, is_wide) < threads;
  std::vector<RefreshTask*> queued;
  double work = 0;
  for (RefreshTask& task : tasks) {
    if (task.offered) continue;
    if (wide_first && is_wide(task)) {
      rebuild(ctx, task);
    } else {
      queued.push_back(&task);
      work += refresh_operations(*task.factor);
    }
  }
  if (threads > 1 && work >= kWorthSharing) {
    rebuild_on_threads(ctx, state.contexts, queued, threads);
  } else {
    const OneThread scope;
    for (RefreshTask* task : queued) rebuild(ctx, *task);
  }
}

}  // namespace dkfac::kfac::cpu
