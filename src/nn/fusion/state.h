#pragma once

#include "dkfac/core/tensor.h"
#include "dkfac/core/tensor_view.h"
#include "dkfac/nn/layers.h"

#include "nn/backends/norm_shape.h"
#include "nn/shared/work_timer.h"

/// State that fused neighbouring layers share; nn/fusion/plan.h decides which layers fuse.
namespace dkfac::nn {

/// Two sums over the rows of `of`, each f32 [c], from the layer that computed it. They are valid
/// for the next pass, and only if it reads that very tensor.
struct RowSums {
  ConstTensorView of, first, second;
};

/// A gradient that the next layer has left to be added to that of the output, which is `of`. The
/// layer takes its memory.
struct GradAddend {
  ConstTensorView view, of;
};
/// Takes and returns the addend of `grad_output` for the backward pass of `layer`, if there is one.
/// Throws InvalidArgument for that of another gradient.
[[nodiscard]] ConstTensorView take(GradAddend& addend, const Layer& layer,
                                   ConstTensorView grad_output);

/// State that a BatchNorm2d receives from its neighbours for its next pass, and provides to them
/// about its last.
struct NormFusion {
  /// Input of forward(), set by add_next() of nn/shared/fusion.h.
  ConstTensorView addend;
  Activation activation;
  /// Input of forward() in training with one group: sums of x and of x*x. The variance is then off
  /// by about mean^2 times the relative error of the sums, and 0 where it would be negative.
  RowSums moments;
  /// Input of backward() with one group: `of` is the gradient before the ReLU of relu_norm(); the
  /// sums are those of its products with (x - mean)/std, and its own.
  RowSums gradient;

  GradAddend grad_addend;  ///< Input of backward().

  ConstTensorView addend_grad;  ///< A view that the caller releases, or the given grad_output.
  ConstTensorView output;       ///< Output of the last forward(), described by `made`.
  ReluNorm made;
};

/// Describes how the last forward() made `y`, if that was in training, of one group, with ReLU and
/// without an addend; otherwise empty (no x).
[[nodiscard]] inline ReluNorm relu_norm(const NormFusion& norm, ConstTensorView y) {
  const bool is_its = y.raw() == norm.output.raw() && y.shape() == norm.output.shape();
  return is_its ? norm.made : ReluNorm{};
}

/// State of the work that a Conv2d does for its neighbours.
struct ConvFusion {
  struct Link {
    NormFusion* norm = nullptr;   ///< Receives the sums; null: nothing is shared.
    bool is_chosen = false;       ///< Whether passes use it.
    bool is_measured = false;     ///< Whether that is a choice by measurement.
    const WorkTimer* timer = {};  ///< Set in the pass that measures.
    bool was_used = false;        ///< Whether the last pass used it.
    Tensor sums;                  ///< f32 [2,c]
    /// Whether a pass on this device may use it, or has to measure it.
    [[nodiscard]] bool is_on(const Context& ctx, DType dtype) const {
      return norm != nullptr && (is_chosen || timer != nullptr) && ctx.device().is_cuda() &&
             size_of(dtype) == 2;
    }
  };
  Link moments;   ///< With the normalisation behind it.
  Link gradient;  ///< With the one before it.
};

[[nodiscard]] ConvFusion& fusion_of(Conv2d& conv);
[[nodiscard]] NormFusion& fusion_of(BatchNorm2d& norm);
/// Null where the layer adds nothing.
[[nodiscard]] GradAddend* addend_of(Pool2d& pool);
/// Returns the layer that computes the sum and the activation of the block in its own pass; null:
/// the block does.
[[nodiscard]] const BatchNorm2d* fusion_of(const Residual& block);

/// Scope of the backward pass of `next`, whose result is then the gradient of `layer`. Where `next`
/// begins with a residual block, and `layer` ends with one whose normalisation computes the sum or
/// with a max pooling, the gradients of the two branches of `next` are left to that layer, which
/// adds them where it reads them. Without effect on the host and for other layers.
class PassedGradient {
 public:
  PassedGradient(const Context& ctx, Layer& layer, Layer& next);
  ~PassedGradient();
  PassedGradient(const PassedGradient&) = delete;
  PassedGradient& operator=(const PassedGradient&) = delete;

 private:
  Residual* block_ = nullptr;
};

}  // namespace dkfac::nn
