#pragma once

#include <cstdint>

#include "dkfac/core/context.h"
#include "dkfac/core/tensor.h"

#include "comm/collective/worker_grid.h"

/// The KL clip: one factor that bounds the length of an update in the metric of the curvature. It
/// stays on the device of the context: who wants to see it copies it from there.
namespace dkfac::kfac {

/// Collects <U, V> over preconditioned gradients U and their gradients V, and makes the factor of
/// them; each layer is counted by one rank.
class KlClip {
 public:
  /// products: add() calls of a step with something in them, at most.
  KlClip(Context& ctx, std::int64_t products);
  void begin() { count_ = 0; }  ///< Of a step.
  void add(ConstTensorView gradient, ConstTensorView direction);
  /// f64[1]: the sum of all ranks; collective.
  [[nodiscard]] ConstTensorView total(const comm::WorkerGrid& grid);
  /// f64[1]: kl_factor() of it; collective. Until the next step.
  [[nodiscard]] ConstTensorView factor(const comm::WorkerGrid& grid, double kappa, double lr);

 private:
  Context& ctx_;
  std::int64_t count_ = 0;
  Tensor products_, total_, factor_;  ///< f64
};

/// u *= factor[0] (f64) in place; 0 also where u is not finite. f32 or f64, contiguous.
void scale_direction(Context& ctx, ConstTensorView factor, TensorView u);

}  // namespace dkfac::kfac
