#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "dkfac/core/ops.h"
#include "dkfac/kfac/assignment.h"

#include "core/shared/cuda/launch.cuh"
#include "core/shared/host.h"
#include "core/shared/index.h"
#include "kfac/inverse/backend_refresh.h"
#include "kfac/inverse/cuda/rebuild.h"
#include "kfac/inverse/cuda/refresh_functors.h"
#include "kfac/inverse/diagonal_factor.h"
#include "kfac/shared/array_functors.h"

namespace dkfac::kfac::cuda {
namespace {

using dkfac::cuda::for_each;
using dkfac::cuda::reduce_rows;

/// A factorisation proceeds column by column and leaves most of the device idle, so several run on
/// concurrent streams, and narrow ones in batches.
constexpr std::size_t kStreams = 4;
constexpr std::int64_t kBatchedWidth = 512;
/// Bytes of the matrices of one batch, which needs about three times as much.
constexpr std::int64_t kBatchBytes = std::int64_t{64} << 20;

// --- assignment to streams -------------------------------------------------------------------

/// Consecutive groups of a task.
struct Part {
  std::size_t task = 0;
  std::int64_t first = 0, count = 0;
};
/// Groups that are inverted together.
struct Job {
  std::vector<Part> parts;
  std::int64_t count = 0;  ///< Groups.
  double operations = 0;
};

bool is_narrow(const Factor& factor) {
  return (factor.is_explicit() || factor.has_blocks()) && factor.dim <= kBatchedWidth;
}

/// Appends jobs of narrow factors of equal width, each of at most kBatchBytes.
void add_batches(std::span<const RefreshTask> tasks, std::span<const std::size_t> alike,
                 std::vector<Job>& jobs) {
  const Factor& shape = *tasks[alike.front()].factor;
  const std::int64_t bytes =
      shape.dim * shape.dim * static_cast<std::int64_t>(size_of(shape.average.dtype()));
  const std::int64_t most =
      std::max<std::int64_t>(kBatchBytes / std::max<std::int64_t>(bytes, 1), 1);
  Job job;
  const auto finish = [&] {
    if (job.count > 0) jobs.push_back(std::exchange(job, {}));
  };
  for (const std::size_t task : alike) {
    const Factor& factor = *tasks[task].factor;
    const double each = refresh_operations(factor) / factor.groups;
    for (std::int64_t first = 0; first < factor.groups;) {
      const std::int64_t count = std::min(factor.groups - first, most - job.count);
      job.parts.push_back({task, first, count});
      job.count += count;
      job.operations += each * static_cast<double>(count);
      first += count;
      if (job.count == most) finish();
    }
  }
  finish();
}

/// Makes the jobs, the longest first.
std::vector<Job> make_jobs(std::span<const RefreshTask> tasks) {
  std::vector<Job> jobs;
  std::vector<std::size_t> narrow;
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    const Factor& factor = *tasks[i].factor;
    if (tasks[i].offered) continue;
    if (is_narrow(factor)) {
      narrow.push_back(i);
      continue;
    }
    const double each = refresh_operations(factor) / factor.groups;
    for (std::int64_t group = 0; group < factor.groups; ++group)
      jobs.push_back({{{i, group, 1}}, 1, each});
  }
  const auto dim = [&](std::size_t i) { return tasks[i].factor->dim; };
  std::ranges::stable_sort(narrow, {}, dim);
  for (auto first = narrow.begin(); first != narrow.end();) {
    const auto last = std::ranges::upper_bound(first, narrow.end(), dim(*first), {}, dim);
    add_batches(tasks, {first, last}, jobs);
    first = last;
  }
  std::ranges::stable_sort(jobs, std::ranges::greater{}, &Job::operations);
  return jobs;
}

// --- work ------------------------------------------------------------------------------------

/// Makes the blocks of all tasks. The stage of a single group is written directly to the stage of
/// its task.
class Blocks {
 public:
  Blocks(std::span<RefreshTask> tasks, RefreshState& state) : tasks_(tasks), state_(state) {
    std::int64_t groups = 0;
    for (const RefreshTask& task : tasks) {
      first_group_.push_back(groups);
      groups += task.factor->groups;
    }
    groups_ = groups;
  }
  [[nodiscard]] std::int64_t groups() const { return groups_; }

  /// The block of the first group of a part.
  template <class T>
  [[nodiscard]] Block<T> first(const Part& part) const {
    Factor& factor = *tasks_[part.task].factor;
    const FactorGroup block = group_of(factor, static_cast<int>(part.first));
    return {block.average.data<T>(),
            block.inverse.data<T>(),
            block.inverse.stride(0),
            block.values.empty() ? nullptr : block.values.data<T>(),
            factor.requested_damping.data<double>() + part.first,
            factor.shifts.data<double>() + part.first,
            stage(part)};
  }
  /// Writes the table of a job's blocks to device memory.
  template <class T>
  [[nodiscard]] const Block<T>* write(Context& ctx, Scratch& scratch, const Job& job) const {
    static_assert(sizeof(Block<T>) % 8 == 0);
    constexpr auto kWords = static_cast<std::int64_t>(sizeof(Block<T>) / 8);
    auto* const table = static_cast<Block<T>*>(scratch.take({job.count, kWords}, DType::f64).raw());
    std::int64_t next = 0;
    for (const Part& part : job.parts) {
      const Factor& factor = *tasks_[part.task].factor;
      for_each(ctx.stream(), part.count,
               WriteBlocks<T>{table + next, first<T>(part), ops::packed_size(factor.dim),
                              factor.inverse.view().stride(0), factor.dim});
      next += part.count;
    }
    return table;
  }
  /// The stage of a task of one group.
  [[nodiscard]] TensorView stage_of(const Part& part) const {
    return state_.stages.view().slice(0, static_cast<std::int64_t>(part.task), 1);
  }
  /// Sets the stages of tasks with several groups to the worst of their groups.
  void join_stages(Context& ctx) const {
    for (std::size_t i = 0; i < tasks_.size(); ++i) {
      const int groups = tasks_[i].factor->groups;
      if (groups == 1) continue;
      const ConstTensorView all = state_.group_stages;
      reduce_rows<std::int32_t>(ctx, 1, groups, dkfac::cuda::Max<std::int32_t>{},
                                Load<std::int32_t>{all.data<std::int32_t>() + first_group_[i]},
                                Store<std::int32_t>{state_.stages.data<std::int32_t>() + i});
    }
  }

 private:
  [[nodiscard]] std::int32_t* stage(const Part& part) const {
    if (tasks_[part.task].factor->groups == 1)
      return state_.stages.data<std::int32_t>() + part.task;
    return state_.group_stages.data<std::int32_t>() + first_group_[part.task] + part.first;
  }

  std::span<RefreshTask> tasks_;
  RefreshState& state_;
  std::vector<std::int64_t> first_group_;
  std::int64_t groups_ = 0;
};

template <class T>
void run_job(Context& ctx, std::span<RefreshTask> tasks, const Blocks& blocks, const Job& job) {
  Scratch scratch(ctx);
  const Block<T>* table = blocks.write<T>(ctx, scratch, job);
  const Part& part = job.parts.front();
  Factor& factor = *tasks[part.task].factor;
  if (factor.is_diagonal()) {
    store_diagonal(ctx, factor);
    return ops::fill(ctx, blocks.stage_of(part), static_cast<double>(InverseStage::damped));
  }
  const FactorGroup block = group_of(factor, static_cast<int>(part.first));
  if (factor.has_rows()) {
    rebuild_rows(ctx, table, block.average);
  } else if (factor.has_values()) {
    rebuild_eigen(ctx, table, block.average, factor.dim);
  } else {
    rebuild_inverses(ctx, table, job.count, factor.dim);
  }
}

void make_room(Context& ctx, Tensor& stages, std::int64_t count) {
  if (stages.numel() < count) stages = Tensor::empty(ctx, {count}, DType::i32);
}

/// Blocks of the tasks, with room for their stages.
Blocks make_blocks(Context& ctx, std::span<RefreshTask> tasks, RefreshState& state) {
  Blocks blocks(tasks, state);
  make_room(ctx, state.stages, std::ssize(tasks));
  make_room(ctx, state.group_stages, blocks.groups());
  return blocks;
}

void make_streams(Context& ctx, RefreshState& state, std::size_t count) {
  if (state.contexts.empty()) state.begun = Event(ctx.device());
  while (state.contexts.size() < count) {
    state.contexts.emplace_back(
        ctx.device(), ContextOptions{.backend = ctx.backend(),
                                     .priority = std::max(ctx.priority(), state.priority)});
    state.done.emplace_back(ctx.device());
  }
}

}  // namespace

void weigh_traces(Context& ctx, std::int64_t groups, const WeighTraces& weigh) {
  for_each(ctx.stream(), groups, weigh);
}

void request_damping(Context& ctx, std::int64_t groups, const RequestDamping& request) {
  for_each(ctx.stream(), groups, request);
}

void request_relative(Context& ctx, const RequestRelative& request) {
  for_each(ctx.stream(), 1, request);
}

void store_offered(Context& ctx, RefreshState& state, std::span<RefreshTask> tasks,
                   std::size_t index, ConstTensorView inverse) {
  const Blocks blocks = make_blocks(ctx, tasks, state);
  with_real("refresh", inverse.dtype(), [&](auto zero) {
    using T = decltype(zero);
    Scratch scratch(ctx);
    commit_inverses<T>(ctx, {.blocks = blocks.write<T>(ctx, scratch, {{{index, 0, 1}}, 1, 0}),
                             .d = inverse.dim(0),
                             .x = inverse.data<T>(),
                             .stride = inverse.stride(0)});
  });
  tasks[index].offered = true;
}

void rebuild_all(Context& ctx, RefreshState& state, std::span<RefreshTask> tasks, std::int64_t) {
  const Blocks blocks = make_blocks(ctx, tasks, state);
  const std::vector<Job> jobs = make_jobs(tasks);
  if (jobs.empty()) return;
  const std::size_t streams = std::min(kStreams, jobs.size());
  make_streams(ctx, state, streams);
  std::vector<LayerLoad> loads;
  for (const Job& job : jobs) loads.push_back({job.operations, job.count});
  const std::vector<int> stream_of = assign(loads, static_cast<int>(streams));
  state.begun.record(ctx.stream());
  for (std::size_t i = 0; i < streams; ++i) state.contexts[i].stream().wait(state.begun);
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    Context& side = state.contexts[index_of(stream_of[i])];
    const DType dtype = tasks[jobs[i].parts.front().task].factor->average.dtype();
    with_real("refresh", dtype,
              [&](auto zero) { run_job<decltype(zero)>(side, tasks, blocks, jobs[i]); });
  }
  for (std::size_t i = 0; i < streams; ++i) state.done[i].record(state.contexts[i].stream());
  state.streams = streams;
}

void join_rebuilds(Context& ctx, RefreshState& state) {
  for (std::size_t i = 0; i < state.streams; ++i) ctx.stream().wait(state.done[i]);
  state.streams = 0;
  Blocks(state.running, state).join_stages(ctx);
}

}  // namespace dkfac::kfac::cuda
