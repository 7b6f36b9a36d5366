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

/// The flat gradient of a layer, which is replaced by its direction in place.
struct LayerDirection {
  int layer = 0;
  TensorView weight = {}, bias = {};
  TensorView whole = {};  ///< Both, where they are adjacent in memory.
};

/// Preconditions gradients and computes the factor of the KL clip.
class Directions {
 public:
  /// products: upper bound of inner products per step (one for a LayerDirection with `whole`, else
  /// two).
  Directions(Context& ctx, double kl_clip, std::int64_t products);

  /// Preconditions the layers that this rank works on. Returns the factor of the KL clip, f64[1] on
  /// the device of the context, from an all-reduce over all ranks; empty without a clip. Sets
  /// report.kl_factor and report.update_step: of this step on the host, of the last update on a
  /// device, where the host does not wait.
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
