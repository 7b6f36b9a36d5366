#pragma once

#include <cstdint>

#include "dkfac/core/random.h"
#include "dkfac/core/tensor_view.h"

#include "core/shared/kernel.h"

/// Kernels of losses and labels. logits: [n,classes], contiguous, f64, f32, bf16 or f16, n may be
/// 0; labels: i32 [n]; targets: [n,classes], contiguous, f64 or f32. Shapes are checked already,
/// values are not.
namespace dkfac::nn {

/// sums[2] (f64) += loss and correct samples; grad (unless it is empty) = the gradient. A label out
/// of range, or a row of targets that is no distribution, makes its sample's loss and gradient NaN.
DKFAC_KERNEL(void, label_loss, ConstTensorView logits, ConstTensorView labels, double smoothing,
             double scale, TensorView grad, TensorView sums);
DKFAC_KERNEL(void, target_loss, ConstTensorView logits, ConstTensorView targets, double scale,
             TensorView grad, TensorView sums);
/// count[1] (f64) += rows whose label's logit is among the k largest.
DKFAC_KERNEL(void, count_in_top, ConstTensorView logits, ConstTensorView labels, std::int64_t k,
             TensorView count);
/// Smooths labels into targets; a label out of range makes its row NaN.
DKFAC_KERNEL(void, soften_labels, ConstTensorView labels, double smoothing, TensorView targets);
DKFAC_KERNEL(void, draw_labels, ConstTensorView logits, const SampleKey& key, TensorView labels);
/// targets = outputs + normal numbers, or bits with the probabilities sigmoid(outputs); both
/// [n,outputs], f64 or f32.
DKFAC_KERNEL(void, draw_targets, ConstTensorView outputs, const SampleKey& key, TensorView targets);
DKFAC_KERNEL(void, draw_bits, ConstTensorView outputs, const SampleKey& key, TensorView targets);
/// grad (unless it is empty) = scale * residuals; sums[2] (f64, unless it is empty) +=
/// cross-entropy and entropy of the targets. All but sums [n,outputs] of one dtype, f64 or f32; n
/// may be 0.
DKFAC_KERNEL(void, sigmoid_loss, ConstTensorView outputs, ConstTensorView targets, double scale,
             TensorView grad, TensorView sums);
/// hv = H v for the rows of two losses (softmax_curvature(), sigmoid_curvature()); all [n,outputs],
/// f64 or f32; hv may be v.
DKFAC_KERNEL(void, softmax_curvature, ConstTensorView logits, ConstTensorView v, TensorView hv);
DKFAC_KERNEL(void, sigmoid_curvature, ConstTensorView logits, ConstTensorView v, TensorView hv);

/// For callers on the host without a context; creating one would allocate memory in every step.
namespace cpu {
void soften(ConstTensorView labels, double smoothing, TensorView targets);
void draw(ConstTensorView logits, const SampleKey& key, TensorView labels);
}  // namespace cpu

}  // namespace dkfac::nn
