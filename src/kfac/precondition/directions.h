#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "dkfac/core/context.h"

#include "comm/collective/host_device_pair.h"
#include "comm/collective/worker_grid.h"
#include "kfac/curvature/curvature.h"
#include "kfac/precondition/kl_clip.h"

namespace dkfac::kfac {

/// Preconditions gradients and computes the factor of the KL clip.
class Directions {
 public:
  /// curvature: after its prepare(). products: upper bound of inner products per step (one for a
  /// LayerDirection with `whole`, else two).
  Directions(Context& ctx, const Curvature& curvature, std::int64_t products);

  /// Preconditions the layers that this rank works on. Returns the factor of the KL clip, f64[1] on
  /// the device of the context, from an all-reduce over all ranks; empty without a clip. Sets
  /// report.kl_factor and report.update_step: of this step on the host, of the last update on a
  /// device, where the host does not wait.
  [[nodiscard]] ConstTensorView make(Curvature& curvature, const comm::WorkerGrid& grid,
                                     std::span<const LayerDirection> layers, double lr,
                                     StepReport& report);

 private:
  /// Layers that are preconditioned together.
  struct Batch {
    std::vector<LayerDirection> layers;  ///< Of this step.
    std::vector<TensorView> gradients;   ///< Their copies, as the KL clip reads them.
    ProductBatch products;
  };
  void form_batches(const Curvature& curvature);
  void make(Curvature& curvature, Batch& batch);

  Context& ctx_;
  double kl_clip_;
  std::vector<Batch> batches_;
  std::vector<int> batch_of_;  ///< Of each layer.
  std::optional<KlClip> clip_;
  comm::HostDevicePair factor_;  ///< f64[1]
  std::int64_t last_update_ = 0;
};

}  // namespace dkfac::kfac
