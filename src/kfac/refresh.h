#pragma once

#include <span>
#include <vector>

#include "dkfac/core/context.h"

#include "kfac/layer_curvature.h"

/// Rebuilding inverses from averages.
namespace dkfac::kfac {

struct RefreshTask {
  Factor* factor = nullptr;
  double shift = 0;   ///< On the diagonal; unused by the eigen path.
  bool zero = false;  ///< The layer's curvature is zero: the inverse is I/shift.
  bool good = false;  ///< Result: the inverse is new; else the old one stays.
};

/// Appends the tasks of both factors of a layer, A first.
void add_refresh_tasks(Context& ctx, const CurvatureOptions& options, LayerCurvature& layer,
                       std::vector<RefreshTask>& tasks);

/// One factor per thread, the longest first: threaded LAPACK is slower than that on everything but
/// the widest factors, which come one after the other when they are fewer than threads.
class RefreshWorkers {
 public:
  explicit RefreshWorkers(Context& ctx) : ctx_(ctx) {}
  /// Results do not depend on the number of threads, but for factors wider than `wide`.
  void run(const CurvatureOptions& options, std::span<RefreshTask> tasks, std::int64_t wide = 2000);

 private:
  void share(const CurvatureOptions& options, std::span<RefreshTask* const> tasks, int threads);

  Context& ctx_;
  std::vector<Context> contexts_;  ///< Of the threads; a context serves one at a time.
};

}  // namespace dkfac::kfac
