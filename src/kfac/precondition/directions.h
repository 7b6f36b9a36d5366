#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "dkfac/core/context.h"

#include "comm/collective/host_device_pair.h"
#include "comm/collective/worker_grid.h"
#include "core/shared/captured.h"
#include "kfac/curvature/curvature.h"
#include "kfac/precondition/kl_clip.h"
#include "kfac/precondition/step_length.h"

namespace dkfac::kfac {

/// Preconditions gradients, sets the length of each layer's direction, and computes the factor of
/// the KL clip.
///
/// On a device, the kernels and products of a step that follows one with the same gradients,
/// damping and inverses are captured as a CUDA graph, and later steps replay it until any of these
/// changes. The sum over ranks and the factor, which depends on the learning rate, are not part of
/// it.
class Directions {
 public:
  Directions(Context& ctx, const Curvature& curvature);  ///< `curvature`: after its prepare().

  /// Preconditions the layers that this rank works on. Returns the factor of the KL clip, f64[1] on
  /// the device of the context, from an all-reduce over all ranks; empty without a clip. Sets
  /// report.kl_factor and report.update_step: of this step on the host, of the last update on a
  /// device, where the host does not wait.
  [[nodiscard]] ConstTensorView make(Curvature& curvature, const comm::WorkerGrid& grid,
                                     std::span<const LayerDirection> layers, double lr,
                                     StepReport& report);
  /// Visits what the lengths of the next directions depend on.
  void visit_state(StateVisitor& visitor, const Curvature& curvature) {
    if (lengths_) lengths_->visit_state(visitor, curvature);
  }
  /// How steps were launched so far; zero on the host, and without ContextOptions::graphs.
  [[nodiscard]] const LaunchCounts& launches() const { return launches_; }

 private:
  /// Layers that are preconditioned together.
  struct Batch {
    std::vector<LayerDirection> layers;  ///< Of this step.
    std::vector<TensorView> gradients;   ///< Their copies, as the KL clip reads them.
    ProductBatch products;
  };
  /// What the work of precondition() depends on, beside the contents of memory.
  struct Key {
    struct Layer {
      int layer;
      const void *weight, *bias, *whole;
      DType dtype;
      bool has_inverse, has_scales;
      bool operator==(const Layer&) const = default;
    };
    std::vector<Layer> layers;
    double damping = 0, relative = 0, normalization = 0;
    std::int64_t growths = -1;  ///< Of the context's scratch.
    bool operator==(const Key&) const = default;
  };

  void form_batches(const Curvature& curvature);
  /// Calls f(part, multiplier of its rate) for the parts of a batch whose products this rank adds
  /// to the KL clip: the owner alone does.
  template <class F>
  void for_clipped(const Curvature& curvature, const Batch& batch, F&& f) const;
  void set_rates(const Curvature& curvature);
  void set_key(const Curvature& curvature, std::span<const LayerDirection> layers);
  /// Launches precondition(), call by call or as a graph.
  void launch(Curvature& curvature, std::span<const LayerDirection> layers, StepReport& report);
  void record(Curvature& curvature);
  /// Preconditions all batches, and sums the products of the clip.
  void precondition(Curvature& curvature);
  void precondition(Curvature& curvature, Batch& batch);

  Context& ctx_;
  double kl_clip_;
  std::vector<Batch> batches_;
  std::vector<int> batch_of_;  ///< Of each layer.
  std::optional<KlClip> clip_;
  std::optional<LayerLengths> lengths_;
  std::vector<double> rates_;
  comm::HostDevicePair factor_;  ///< f64[1]
  std::int64_t last_update_ = 0;
  Key key_, last_key_;  ///< Of this step and of the last one.
  CapturedWork captured_;
  int refusals_ = 0;  ///< With last_key_.
  LaunchCounts launches_;
};

}  // namespace dkfac::kfac
