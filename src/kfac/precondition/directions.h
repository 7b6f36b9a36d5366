#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "dkfac/core/context.h"

#include "comm/collective/host_device_pair.h"
#include "comm/collective/worker_grid.h"
#include "kfac/curvature/curvature.h"
#include "kfac/precondition/kl_clip.h"

namespace dkfac::kfac {

/// The gradient of a layer, flat, which becomes its direction in place.
struct LayerDirection {
  int layer = 0;
  TensorView weight = {}, bias = {};
  TensorView whole = {};  ///< Both, where they lie side by side.
};

/// Gradients into directions, and the factor of the KL clip.
class Directions {
 public:
  /// products: of one step, at most (LayerDirection: one with `whole`, else two).
  Directions(Context& ctx, double kl_clip, std::int64_t products);

  /// Of layers that this rank works on. Returns the factor of the KL clip, f64[1] on the device of
  /// the context, for which the sums of all ranks meet; empty without a clip. report.kl_factor is
  /// that of report.update_step: this step on the host, the last update on a device, whose host
  /// does not wait for it.
  [[nodiscard]] ConstTensorView make(Curvature& curvature, const comm::WorkerGrid& grid,
                                     std::span<const LayerDirection> layers, double lr,
                                     StepReport& report);

 private:
  void make(Curvature& curvature, const LayerDirection& layer);

  Context& ctx_;
  double kl_clip_;
  std::optional<KlClip> clip_;
  comm::HostDevicePair factor_;  ///< f64[1]
  std::int64_t last_update_ = 0;
};

}  // namespace dkfac::kfac
