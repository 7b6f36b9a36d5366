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

/// The damping asked for stands in Factor::requested_damping.
struct RefreshTask {
  LayerCurvature* layer = nullptr;
  Factor* factor = nullptr;                 ///< Of the layer.
  InverseStage stage = InverseStage::kept;  ///< Result: the worst of the groups.
  bool written = false;                     ///< Result: a group has a new inverse.
};

/// Which factors of a layer to rebuild.
struct RefreshParts {
  bool a = true, g = true;
};
/// Appends the tasks of the factors asked for that are stale and have a statistic, A first. The
/// split of the damping takes the traces of both, whichever is rebuilt; on CUDA the traces and the
/// split stay on the device.
void add_refresh_tasks(Context& ctx, const CurvatureOptions& options, LayerCurvature& layer,
                       RefreshParts parts, std::vector<RefreshTask>& tasks);

/// FactorForm::diagonal: takes the average and the damping asked for as they are. There is nothing
/// that could fail: an average is finite and not negative, and its damping positive.
void take_diagonal(Context& ctx, Factor& factor);

/// One group of a factor, as the ladder takes it.
[[nodiscard]] FactorGroup group_of(Factor& factor, int group);

/// What RefreshWorkers keeps from run to run.
struct RefreshState {
  std::vector<Context> contexts;  ///< Of the threads; CUDA: of the side streams.
  // CUDA only.
  Event begun;              ///< What the side streams follow.
  std::vector<Event> done;  ///< Of the side streams.
  Tensor stages;            ///< i32[tasks]
  /// i32[groups of all tasks], one task after the other; nothing of tasks of a single group.
  Tensor group_stages;
  std::vector<RefreshTask> running, collected;
};

/// On the host: one factor per thread, the longest first: threaded LAPACK is slower than that on
/// everything but the widest matrices, which come one after the other when they are fewer than
/// threads. The width that counts is that of what is factorised: a low-rank factor is as wide as
/// its rows are many.
///
/// On CUDA: narrow factors of one width in batches, the others one by one, the longest first, over
/// some streams beside the context's. The host waits for nothing: the first stage of the ladder is
/// tried, its result is checked on the device (residual.h) and takes the place of the old inverse
/// there, or does not. The host learns of it from stages() and collect().
class RefreshWorkers {
 public:
  explicit RefreshWorkers(Context& ctx) : ctx_(ctx) {}
  /// Rebuilds (robust_inverse.h), and books the outcome: good, stale, failures of each factor;
  /// EKFAC scales of replaced eigenvectors are forgotten. Results do not depend on the number of
  /// threads, but where what is factorised is wider than `wide`. Returns those that are finished:
  /// on the host all of them, on CUDA none, which collect() books. What ran before must have been
  /// collected.
  std::span<const RefreshTask> run(std::span<RefreshTask> tasks, std::int64_t wide = 2000);

  /// CUDA: i32, the InverseStage of each task of the last run() that has not been collected, in
  /// device memory, good for work that follows on the context's stream; empty without one.
  [[nodiscard]] ConstTensorView stages() const;
  /// CUDA: takes those numbers, read by the host, and books the outcome. Factors that failed result
  /// the ladder here and now, for which the host waits; without one it does not. Returns the tasks
  /// with their results, until the next call.
  std::span<const RefreshTask> collect(std::span<const std::int32_t> stages);

  /// CUDA: sums over the side streams, of Context's numbers; 0 on the host, where threads that
  /// share work differ from run to run.
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
