#pragma once

#include <span>
#include <vector>

#include "dkfac/core/context.h"
#include "dkfac/kfac/report.h"

#include "kfac/layer_curvature.h"

/// Rebuilding inverses from averages.
namespace dkfac::kfac {

/// The damping asked for stands in Factor::asked.
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
/// split of the damping takes the traces of both, whichever is rebuilt.
void add_refresh_tasks(Context& ctx, const CurvatureOptions& options, LayerCurvature& layer,
                       RefreshParts parts, std::vector<RefreshTask>& tasks);

/// One factor per thread, the longest first: threaded LAPACK is slower than that on everything but
/// the widest matrices, which come one after the other when they are fewer than threads. The width
/// that counts is that of what is factorised: a low-rank factor is as wide as its rows are many.
class RefreshWorkers {
 public:
  explicit RefreshWorkers(Context& ctx) : ctx_(ctx) {}
  /// Rebuilds (ladder.h), and books the outcome: good, stale, failures of each factor; EKFAC scales
  /// of replaced eigenvectors are forgotten. Results do not depend on the number of threads, but
  /// where what is factorised is wider than `wide`.
  void run(std::span<RefreshTask> tasks, std::int64_t wide = 2000);

 private:
  void share(std::span<RefreshTask* const> tasks, int threads);

  Context& ctx_;
  std::vector<Context> contexts_;  ///< Of the threads; a context serves one at a time.
};

}  // namespace dkfac::kfac
