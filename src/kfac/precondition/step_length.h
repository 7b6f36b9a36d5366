#pragma once

#include <span>
#include <vector>

#include "dkfac/core/context.h"
#include "dkfac/core/tensor.h"
#include "dkfac/kfac/options.h"

#include "kfac/curvature/curvature.h"

namespace dkfac::kfac {

/// Gives the direction of each layer a length by that of its gradient, and bounds the growth of
/// this length. Nothing is sent: every rank that preconditions a layer computes the same. What it
/// enqueues does not depend on values.
class LayerLengths {
 public:
  LayerLengths(Context& ctx, StepLength rule, const Curvature& curvature);
  /// Copies the gradients of layers to memory of `scratch`, before they are preconditioned, and
  /// takes their lengths and their products with the steps before them.
  void keep(Scratch& scratch, std::span<const LayerDirection> layers);
  /// Rescales the directions of the layers that were kept last.
  void rescale(std::span<const LayerDirection> layers);
  /// Visits the lengths and last steps of the layers that this rank preconditions.
  void visit_state(StateVisitor& visitor, const Curvature& curvature);

 private:
  /// Takes the products of a layer's gradient and last step.
  void compare(Scratch& scratch, const LayerDirection& layer);
  /// f64[3] of a layer's weight (0) or bias (1).
  [[nodiscard]] TensorView products_of(int layer, std::size_t part);

  Context& ctx_;
  StepLength rule_;
  Tensor products_;                    ///< f64[layers,2,3]: vv, uu, uv of weight and bias.
  std::vector<Tensor> last_;           ///< f32[n] of a layer's last step, as sample_of().
  Tensor before_;                      ///< f64[layers,3]: vv, vw, ww with these n of V and W.
  Tensor lengths_;                     ///< f64[layers,kLengths]
  Tensor factors_;                     ///< f64[layers,2]: LengthFactors
  std::vector<ConstTensorView> kept_;  ///< Weight and bias of each layer.
};

}  // namespace dkfac::kfac
