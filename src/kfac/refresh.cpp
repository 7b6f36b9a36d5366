#include "kfac/refresh.h"

#include <algorithm>
#include <exception>

#include "dkfac/core/ops.h"
#include "dkfac/core/parallel.h"
#include "dkfac/core/threads.h"
#include "dkfac/kfac/assignment.h"
#include "dkfac/kfac/inverse.h"

namespace dkfac::kfac {
namespace {

double trace_of(Context& ctx, const Factor& factor) {
  double trace = 0;
  ops::packed_trace(ctx, factor.average, factor.dim, view_of(&trace, {1}));
  return trace;
}

/// Operations (cubes of widths) below which waking other threads costs more than it saves.
constexpr double kWorthSharing = 2e6;

/// BLAS of this scope runs on the calling thread, as it does where factors are shared out.
class OneThread {
 public:
  OneThread() : before_(dkfac::threads()) { set_threads(1); }
  ~OneThread() { set_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

double cost_of(const RefreshTask& task) {
  const auto n = static_cast<double>(task.factor->dim);
  return n * n * n;
}

/// The inverse in use is replaced only by one whose status is good.
void rebuild(Context& ctx, const CurvatureOptions& options, RefreshTask& task) {
  Factor& factor = *task.factor;
  const bool eigen = options.inverse == InverseMethod::eigen;
  std::int32_t info = 0;
  Scratch scratch(ctx);
  const TensorView square = scratch.take(factor.inverse.shape(), options.dtype);
  const TensorView values = eigen ? scratch.take({factor.dim}, options.dtype) : TensorView{};
  if (eigen) {
    decompose_factor(ctx, factor.average, square, values, view_of(&info, {1}));
  } else if (task.zero) {
    ops::fill(ctx, square, 0);
    ops::add_diagonal(ctx, square, 1 / task.shift);
  } else {
    invert_factor(ctx, factor.average, task.shift, square, view_of(&info, {1}));
  }
  task.good = info == 0;
  if (!task.good) return;
  ops::copy(ctx, square, factor.inverse);
  if (eigen) ops::copy(ctx, values, factor.values);
  factor.good = true;
}

}  // namespace

void add_refresh_tasks(Context& ctx, const CurvatureOptions& options, LayerCurvature& layer,
                       std::vector<RefreshTask>& tasks) {
  const DampingSplit split = split_damping(options.damping, trace_of(ctx, layer.a), layer.a.dim,
                                           trace_of(ctx, layer.g), layer.g.dim);
  tasks.push_back({&layer.a, split.a, split.zero, false});
  tasks.push_back({&layer.g, split.g, split.zero, false});
}

void RefreshWorkers::run(const CurvatureOptions& options, std::span<RefreshTask> tasks,
                         std::int64_t wide) {
  const int threads = dkfac::threads();
  const auto is_wide = [wide](const RefreshTask& task) { return task.factor->dim > wide; };
  const bool wide_first = std::ranges::count_if(tasks, is_wide) < threads;
  std::vector<RefreshTask*> shared;
  double work = 0;
  for (RefreshTask& task : tasks) {
    if (wide_first && is_wide(task)) {
      rebuild(ctx_, options, task);
    } else {
      shared.push_back(&task);
      work += cost_of(task);
    }
  }
  if (threads > 1 && work >= kWorthSharing) return share(options, shared, threads);
  const OneThread scope;
  for (RefreshTask* task : shared) rebuild(ctx_, options, *task);
}

void RefreshWorkers::share(const CurvatureOptions& options, std::span<RefreshTask* const> tasks,
                           int threads) {
  std::vector<LayerLoad> loads;
  for (const RefreshTask* task : tasks) loads.push_back({cost_of(*task), task->factor->dim});
  const std::vector<int> thread_of = assign(loads, threads);
  while (static_cast<int>(contexts_.size()) < threads)
    contexts_.emplace_back(ctx_.device(), ContextOptions{.backend = ctx_.backend(), .threads = 0});
  std::vector<std::exception_ptr> errors(contexts_.size());
  cpu::parallel_parts(threads, [&](int thread) {
    const auto t = static_cast<std::size_t>(thread);
    try {
      for (std::size_t i = 0; i < tasks.size(); ++i)
        if (thread_of[i] == thread) rebuild(contexts_[t], options, *tasks[i]);
    } catch (...) {
      errors[t] = std::current_exception();
    }
  });
  for (const std::exception_ptr& error : errors)
    if (error != nullptr) std::rethrow_exception(error);
}

}  // namespace dkfac::kfac
