#pragma once

#include <cstdint>
#include <vector>

#include "dkfac/core/context.h"
#include "dkfac/core/tensor.h"

#include "comm/collective/host_device_pair.h"
#include "comm/collective/worker_grid.h"

/// The KL clip: one factor that bounds the length of an update in the metric of the curvature. The
/// factor stays on the device of the context.
namespace dkfac::kfac {

/// Sums s^2 <U, V> over preconditioned gradients U and their gradients V, with the multiplier s of
/// the learning rate of each, and computes the factor from it; each layer must be added by one rank
/// only.
class KlClip {
 public:
  /// products: upper bound of non-empty add() calls per step.
  KlClip(Context& ctx, std::int64_t products);
  /// Sets the multipliers of the rate for the non-empty add() calls of a step, in their order; 1
  /// before. The caller has waited for the step before where they change.
  void set_rates(const std::vector<double>& multipliers);
  void begin() { count_ = 0; }  ///< Starts a step.
  void add(ConstTensorView gradient, ConstTensorView direction);
  void add_up();  ///< Ends the add() calls of a step.
  /// Returns the sum over all ranks, f64[1]; collective. After add_up().
  [[nodiscard]] ConstTensorView total(const comm::WorkerGrid& grid);
  /// Returns kl_factor() of that sum, f64[1]; collective. After add_up(), valid until the next
  /// step.
  [[nodiscard]] ConstTensorView factor(const comm::WorkerGrid& grid, double kappa, double lr);

 private:
  Context& ctx_;
  std::int64_t count_ = 0;
  Tensor products_, total_, factor_;  ///< f64
  comm::HostDevicePair scales_;       ///< f64[products]: squares of the multipliers.
};

/// Scales in place: u *= factor[0] (f64). The result is 0 where the factor is 0, even if u is not
/// finite. u: f32 or f64, contiguous.
void scale_direction(Context& ctx, ConstTensorView factor, TensorView u);

}  // namespace dkfac::kfac
