#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dkfac/core/context.h"
#include "dkfac/core/stream.h"
#include "dkfac/core/tensor.h"
#include "dkfac/kfac/report.h"

#include "kfac/inverse/layer_curvature.h"
#include "kfac/inverse/robust_inverse.h"

/// Rebuilding inverses from averages.
namespace dkfac::kfac {

/// One factor to rebuild, with the damping in Factor::requested_damping.
struct RefreshTask {
  LayerCurvature* layer = nullptr;
  Factor* factor = nullptr;                 ///< A factor of the layer.
  InverseStage stage = InverseStage::kept;  ///< Result: the worst stage of the groups.
  bool written = false;                     ///< Result: a group has a new inverse.
  /// RefreshWorkers::offer() has stored an inverse, and nothing is left to rebuild; on a device,
  /// the stage there tells whether it has.
  bool offered = false;
};

/// Which factors of a layer to rebuild.
struct RefreshParts {
  bool a = true, g = true;
};
/// What the damping takes for the traces of the groups of a factor (f64[groups]), or for their sum
/// (f64[1]). `weighted`, of G where the damping is relative: width * tr G^2 / tr G.
void damping_traces(Context& ctx, const Factor& factor, bool weighted, TensorView traces);

/// Appends a task for each requested factor that is stale and has a statistic, A first. The damping
/// split uses the traces of both factors, whichever is rebuilt; on CUDA traces and split stay on
/// the device.
void add_refresh_tasks(Context& ctx, const CurvatureOptions& options, LayerCurvature& layer,
                       RefreshParts parts, std::vector<RefreshTask>& tasks);

/// One group of a factor, the argument of rebuild_inverse().
[[nodiscard]] FactorGroup group_of(Factor& factor, int group);

/// State of RefreshWorkers that persists between runs.
struct RefreshState {
  std::vector<Context> contexts;  ///< One per thread; CUDA: one per side stream.
  // CUDA only.
  Event begun;              ///< Recorded on the context's stream; the side streams wait for it.
  std::vector<Event> done;  ///< Ends of work on the side streams.
  Priority priority = Priority::normal;  ///< Of the side streams.
  std::size_t streams = 0;  ///< Side streams of the last run that the context's has not joined.
  Tensor stages;            ///< i32[tasks]
  /// i32[groups of all tasks], one task after the other; tasks of a single group have no elements.
  Tensor group_stages;
  std::vector<RefreshTask> running, collected;
};

/// Rebuilds inverses in parallel.
///
/// On the host, each thread rebuilds one factor, the widest first: threaded LAPACK is slower for
/// all but the widest matrices. Those are rebuilt one after the other where they are fewer than
/// threads. The width that counts is that of the factorised matrix: for a low-rank factor, its
/// number of rows.
///
/// On CUDA, narrow factors of equal width are batched, and the others are rebuilt one by one, the
/// widest first, over several side streams. The host does not wait: only the first stage is
/// enqueued. Its result is checked on the device (residual.h) and replaces the old inverse there if
/// it passes. The host reads the outcome by stages() and collect().
class RefreshWorkers {
 public:
  /// priority: of the side streams.
  explicit RefreshWorkers(Context& ctx, Priority priority = Priority::normal) : ctx_(ctx) {
    state_.priority = priority;
  }
  /// Offers what the form of a task's only group stores, as made with other ranks: it is stored if
  /// it passes the check of any inverse. Before run(), with the same tasks, which then rebuilds the
  /// others; on a device collect() rebuilds those whose offer has failed.
  void offer(std::span<RefreshTask> tasks, std::size_t task, ConstTensorView inverse);
  /// Rebuilds inverses (robust_inverse.h) and updates `valid`, `stale` and `failures` of each
  /// factor; resets EKFAC scales whose eigenvectors are replaced. Results do not depend on the
  /// number of threads, unless the factorised matrix is wider than `wide`. Returns the finished
  /// tasks: all of them on the host, none on CUDA, where collect() finishes them. Earlier tasks
  /// must have been collected.
  std::span<const RefreshTask> run(std::span<RefreshTask> tasks, std::int64_t wide = 2000);
  /// As run(), but on CUDA the context's stream does not wait for the side streams before join();
  /// until then nothing may change averages or read inverses.
  std::span<const RefreshTask> start(std::span<RefreshTask> tasks, std::int64_t wide = 2000);
  /// CUDA: lets the context's stream wait for what start() has begun; later calls do nothing.
  void join();

  /// CUDA: the InverseStage (i32) of each task of the last run(), or of start() after join(), that
  /// has not been collected. In device memory, valid for later work on the context's stream; empty
  /// without such tasks.
  [[nodiscard]] ConstTensorView stages() const;
  /// CUDA: updates the factors from stages(), copied to the host. Runs the fallback stages for
  /// factors that failed, for which the host waits; otherwise it does not. Returns the tasks with
  /// their results, valid until the next call.
  std::span<const RefreshTask> collect(std::span<const std::int32_t> stages);

  /// CUDA: the numbers of Context, summed over the side streams. 0 on the host, where they would
  /// vary with the distribution of work over threads.
  [[nodiscard]] std::int64_t scratch_growths() const;
  [[nodiscard]] std::int64_t scratch_bytes() const;
  [[nodiscard]] std::int64_t library_bytes() const;

 private:
  template <class Number>
  [[nodiscard]] std::int64_t over_streams(Number&& number) const;

  Context& ctx_;
  RefreshState state_;
};

}  // namespace dkfac::kfac
