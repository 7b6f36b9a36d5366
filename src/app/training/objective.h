#pragma once

#include "dkfac/core/context.h"
#include "dkfac/core/random.h"
#include "dkfac/core/tensor_view.h"
#include "dkfac/nn/curvature.h"

#include "app/shared/config.h"

namespace dkfac::app {

/// What a network is trained to on some samples: labels or soft targets, or with a loss of
/// reconstruction the images themselves.
struct Wanted {
  ConstTensorView images;   ///< [n,...], as the network has read them.
  ConstTensorView labels;   ///< i32 [n]
  ConstTensorView targets;  ///< Soft targets; empty: the labels are used.
  double smoothing = 0;     ///< Of the labels.
};

/// Adds loss and correct samples to sums[2] (f64), or of a loss of reconstruction, loss and entropy
/// of the images; grad (unless it is empty) = scale * its gradient. As the losses of nn.
void add_loss(Context& ctx, TrainLoss loss, ConstTensorView outputs, const Wanted& wanted,
              double scale, TensorView grad, TensorView sums);
/// grad = scale * the gradient of the loss at targets sampled from the distribution that the
/// outputs stand for; `drawn` is their memory: drawn_shape(), drawn_type().
void sampled_gradient(Context& ctx, TrainLoss loss, ConstTensorView outputs, const SampleKey& key,
                      double scale, TensorView drawn, TensorView grad, TensorView sums);
[[nodiscard]] Shape drawn_shape(TrainLoss loss, const Shape& outputs);
[[nodiscard]] DType drawn_type(TrainLoss loss, DType outputs);
/// The Gauss-Newton products of the loss, for the quadratic model.
[[nodiscard]] nn::OutputCurvature curvature_of(TrainLoss loss);

}  // namespace dkfac::app
