#pragma once

#include "dkfac/core/context.h"
#include "dkfac/core/tensor_view.h"

#include "kfac/worker_grid.h"

/// The KL clip: one factor that bounds the length of an update in the metric of the curvature.
namespace dkfac::kfac {

/// nu = min(1, sqrt(kappa / (lr^2 sum))), sum = <U, V> over all preconditioned gradients U and
/// their gradients V (docs/math.md, "KL clip"). 1 where lr^2 sum <= 0: nothing moves, or the
/// direction has no length in this metric. 0 where it is not finite: such a direction must not be
/// applied.
[[nodiscard]] double kl_factor(double kappa, double lr, double sum);
/// u *= factor, in place; 0 also where u is not finite. f32 or f64, contiguous.
void scale_direction(double factor, TensorView u);

/// Collects <U, V> of one step; each layer is counted by one rank.
class KlSum {
 public:
  explicit KlSum(Context& ctx) : ctx_(ctx) {}
  void add(ConstTensorView gradient, ConstTensorView direction);
  /// Of all ranks; collective.
  [[nodiscard]] double total(const WorkerGrid& grid);

 private:
  Context& ctx_;
  double sum_ = 0;
};

}  // namespace dkfac::kfac
