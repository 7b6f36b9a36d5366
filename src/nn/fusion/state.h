#pragma once

#include "dkfac/core/tensor.h"
#include "dkfac/core/tensor_view.h"
#include "dkfac/nn/layers.h"

#include "nn/backends/norm_shape.h"

/// What neighbouring layers leave each other where they share a pass over memory; nn/fusion/plan.h
/// decides which do.
namespace dkfac::nn {

/// Two sums over the rows of `of`, each f32 [c], from the layer that computed it. They serve the
/// next pass, and only where it reads that very tensor.
struct RowSums {
  ConstTensorView of, first, second;
};

/// What a BatchNorm2d has from its neighbours for its next pass, and tells them of its last.
struct NormFusion {
  /// For forward(): add_next() of nn/shared/fusion.h.
  ConstTensorView addend;
  Activation activation;
  /// For forward() in training with one group: of x and of x*x. The variance is then off by about
  /// mean^2 times the relative error of the sums, and 0 where it would be negative.
  RowSums moments;
  /// For backward() with one group: `of` is the gradient before the ReLU of relu_norm(), and the
  /// sums are those of its products with (x - mean)/std, and its own.
  RowSums gradient;

  ConstTensorView addend_grad;  ///< A view that the caller releases, or the given grad_output.
  ConstTensorView output;       ///< Of the last forward(), where `made` says how it was made.
  ReluNorm made;
};

/// How the last forward() made `y`, if that was in training, of one group, with ReLU and without
/// an addend; nothing (no x) otherwise.
[[nodiscard]] inline ReluNorm relu_norm(const NormFusion& norm, ConstTensorView y) {
  const bool is_its = y.raw() == norm.output.raw() && y.shape() == norm.output.shape();
  return is_its ? norm.made : ReluNorm{};
}

/// What a Conv2d does for its neighbours.
struct ConvFusion {
  struct Link {
    NormFusion* norm = nullptr;  ///< Takes the sums; null: nothing is shared.
    bool was_used = false;       ///< By the last pass.
    Tensor sums;                 ///< f32 [2,c]
  };
  Link moments;   ///< With the normalisation behind it.
  Link gradient;  ///< With the one before it.
};

[[nodiscard]] ConvFusion& fusion_of(Conv2d& conv);
[[nodiscard]] NormFusion& fusion_of(BatchNorm2d& norm);
/// The layer that does the sum and the activation of the block in its own pass; null: the block.
[[nodiscard]] const BatchNorm2d* fusion_of(const Residual& block);

}  // namespace dkfac::nn
