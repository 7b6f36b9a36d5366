#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dkfac/core/state.h"
#include "dkfac/core/tensor.h"
#include "dkfac/kfac/report.h"

#include "comm/collective/all_gather.h"
#include "comm/collective/host_device_pair.h"
#include "optim/frame.h"
#include "optim/gradients.h"
#include "optim/quadratic_model.h"

namespace dkfac::optim {

/// Throws InvalidArgument for options that decide the step beside StepLength::quadratic.
void check_quadratic(const KfacOptions& options);

/// Updates of StepLength::quadratic: w += lr (alpha D + nu P + mu d), with the rates of the
/// quadratic model (optim/quadratic_model.h). D: minus the preconditioned gradient; P:
/// minus the gradient of layers without curvature, if there are any; d: the last update. Every rank
/// has all of them: directions are gathered in place of weights, and each rank updates all weights.
class QuadraticStep {
 public:
  /// What this rank does for a layer.
  struct Role {
    bool owned = false, worked_on = false;  ///< By this rank.
    bool curved = false;
  };
  /// owners, roles: of each layer. l2: coefficient of the L2 term of the loss. frame is prepared
  /// and outlives this.
  QuadraticStep(OptimizerFrame& frame, std::span<const int> owners, std::span<const Role> roles,
                double l2);

  /// Adds the L2 term to the gradients of the layers that this rank works on, and keeps those of
  /// the layers that it owns; before they are preconditioned.
  void keep(Gradients& gradients);
  /// Updates the parameters by the preconditioned gradients. Calls `along` once, ordered with
  /// `caller`; then sums products over the ranks in one reduction, for which the host waits.
  void update(Gradients& gradients, const CurvatureAlong& along, double damping, double lr,
              Stream caller, kfac::StepReport& report);
  [[nodiscard]] std::int64_t bytes() const;  ///< Of directions and their gather.
  void visit_state(StateVisitor& visitor);   ///< The last update.

 private:
  /// Part of a layer, in vectors of all elements.
  struct Part {
    TensorView parameter;
    std::int64_t first;
    double lr, decay;  ///< Multipliers.
    [[nodiscard]] TensorView of(TensorView all) const {
      return all.slice(0, first, parameter.numel());
    }
  };
  struct Layer {
    std::vector<Part> parts = {};
    std::int64_t first = 0, count = 0;
    Role role = {};
    [[nodiscard]] TensorView of(TensorView all) const { return all.slice(0, first, count); }
  };
  struct Direction {
    TensorView elements;
    double length;
  };
  void gather(Gradients& gradients);
  void choose_directions();
  /// sums[index] += factor * x'y
  void add_product(std::int64_t index, double factor, ConstTensorView x, ConstTensorView y);
  void add_inner_products();
  void add_curvature(const CurvatureAlong& along, Stream caller);
  /// Reduces the sums over all ranks.
  [[nodiscard]] DirectionProducts reduce_products();
  void move(const ModelStep& step, double lr, kfac::StepReport& report);

  OptimizerFrame& frame_;
  double l2_;
  std::vector<Layer> layers_;
  comm::AllGather gathered_;
  Tensor gradient_;                  ///< [elements], of the layers that this rank owns.
  Tensor direction_, plain_, last_;  ///< [elements], 0 where a layer is in another one.
  bool has_plain_ = false;
  std::vector<Direction> directions_;    ///< Of this step, in the order of the model.
  comm::HostDevicePair lengths_, sums_;  ///< f64
};

}  // namespace dkfac::optim
