#pragma once

#include <cstdint>
#include <span>

#include "dkfac/core/context.h"
#include "dkfac/core/random.h"
#include "dkfac/core/tensor_view.h"

namespace dkfac::nn {

/// Sums over this rank's batch; the caller divides by the samples of all ranks.
struct LossSum {
  double loss = 0;           ///< Sum of the samples' losses.
  std::int64_t correct = 0;  ///< Samples whose largest logit is the label's (the first of equals).
};

/// Softmax cross-entropy with label smoothing a: the sample's loss is (1-a) * (-log p_y) + a *
/// mean_k(-log p_k). logits: [n,classes], f64, f32, bf16 or f16; labels in [0, classes).
/// grad[n,classes] = scale * d loss / d logits; an empty grad is not computed. The maximum is
/// subtracted, so large logits do not overflow. Throws InvalidArgument for a label out of range.
LossSum softmax_cross_entropy(Context& ctx, ConstTensorView logits,
                              std::span<const std::int32_t> labels, double smoothing, double scale,
                              TensorView grad);

/// Softmax cross-entropy with a target distribution per sample, as mixup makes them: sum_k t_k *
/// (-log p_k). targets: [n,classes], f64 or f32, each row >= 0 with sum 1; the sample's label is
/// its largest (of equals the first). Throws InvalidArgument for a row that is no distribution.
LossSum softmax_cross_entropy(Context& ctx, ConstTensorView logits, ConstTensorView targets,
                              double scale, TensorView grad);

/// Both losses on any device, without a host synchronization: sums[2] (f64, on the device of ctx)
/// += loss and correct samples. labels: i32 [n] on the device. A label that is not in [0, classes)
/// gives its sample a loss and a gradient of NaN, as does a row of targets that is no distribution.
void softmax_cross_entropy(Context& ctx, ConstTensorView logits, ConstTensorView labels,
                           double smoothing, double scale, TensorView grad, TensorView sums);
void soft_cross_entropy(Context& ctx, ConstTensorView logits, ConstTensorView targets, double scale,
                        TensorView grad, TensorView sums);

/// Top-k accuracy: count[1] (f64, on the device of ctx) += samples whose label's logit is among the
/// k largest of its row. That is, fewer than k logits are larger, or equal and of a smaller class,
/// so that k = 1 counts the same as LossSum::correct. labels: i32 [n] on the device. A row with a
/// NaN is not counted, nor is a label that is not in [0, classes). k >= 1. No host synchronization.
void count_in_top(Context& ctx, ConstTensorView logits, ConstTensorView labels, std::int64_t k,
                  TensorView count);

/// Smoothed labels as distributions: targets[i,k] = (1-a) [k = label of i] + a/classes, the targets
/// of the first loss, for mixing. targets: [n,classes], f64 or f32. Throws InvalidArgument for a
/// label out of range.
void soft_targets(std::span<const std::int32_t> labels, double smoothing, TensorView targets);
/// Smoothed labels on any device: labels i32 [n] there; a row whose label is out of range becomes
/// NaN.
void soft_targets(Context& ctx, ConstTensorView labels, double smoothing, TensorView targets);

/// Draws a label per sample from softmax(logits), for the one-sample Monte-Carlo Fisher
/// (docs/math.md, "Monte-Carlo Fisher"). logits: [n,classes] as above. A label depends only on its
/// row and its key. A row with a NaN or +infinity gets label 0; its loss is not finite, which the
/// step's flags report.
void sample_labels(ConstTensorView logits, SampleKey key, std::span<std::int32_t> labels);
/// Draws labels on any device: labels i32 [n] there. The arithmetic is the same as on the host;
/// labels can differ only for a number on the border of two classes, up to the last digits of
/// exp().
void sample_labels(Context& ctx, ConstTensorView logits, SampleKey key, TensorView labels);

/// Products with the Hessian H of each sample's loss in its outputs, which is the Fisher of its
/// distribution too: hv = H v, so that u' H v of tangents u and v (Model::tangent()) is a product
/// of the Gauss-Newton matrix (docs/math.md, "Quadratic model"). Softmax cross-entropy, whatever
/// its targets: hv_k = p_k (v_k - sum_j p_j v_j). Sigmoid cross-entropy: hv_k = p_k (1 - p_k) v_k.
/// Squared error: H = I. outputs, v, hv: [n, outputs] of one dtype, f64 or f32; hv may be v. On any
/// device, without a host synchronization.
void softmax_curvature(Context& ctx, ConstTensorView logits, ConstTensorView v, TensorView hv);
void sigmoid_curvature(Context& ctx, ConstTensorView logits, ConstTensorView v, TensorView hv);
void squared_curvature(Context& ctx, ConstTensorView outputs, ConstTensorView v, TensorView hv);

/// Squared error of a regression: the sample's loss is 1/2 sum_k (y_k - t_k)^2, which is -log p(t)
/// of a Gaussian of unit variance around y, up to a constant. Its Fisher is the Gauss-Newton matrix
/// J' J, J = dy/dw (docs/math.md, "Regression"). outputs, targets: [n, outputs], f64 or f32;
/// loss[1] (f64) += the sum over samples; grad = scale * (y - t), unless it is empty. On any
/// device, without a host synchronization.
void squared_error(Context& ctx, ConstTensorView outputs, ConstTensorView targets, double scale,
                   TensorView grad, TensorView loss);

/// Draws targets from that Gaussian, N(outputs, I), for the one-sample Monte-Carlo Fisher; keys as
/// of sample_labels(). targets: as the outputs; they may be the same memory.
void sample_targets(Context& ctx, ConstTensorView outputs, SampleKey key, TensorView targets);

/// Sigmoid cross-entropy: the sample's loss is sum_k -t_k log p_k - (1 - t_k) log(1 - p_k), p =
/// sigmoid(outputs), summed over outputs, without overflow. outputs, targets: [n, outputs], f64 or
/// f32, targets in [0, 1]; sums[2] (f64) += the losses of all samples and the entropies of their
/// targets, which are the least losses; their difference is the KL divergence of p from t in nats.
/// Empty sums are not computed. A target outside [0, 1] makes the entropy NaN. grad = scale * (p -
/// t), unless it is empty. On any device, without a host synchronization. Its Fisher is the
/// Gauss-Newton matrix J' diag(p (1-p)) J (docs/math.md, "Sigmoid cross-entropy").
void sigmoid_cross_entropy(Context& ctx, ConstTensorView outputs, ConstTensorView targets,
                           double scale, TensorView grad, TensorView sums);

/// Draws a bit per output, 1 with the probability sigmoid(output), for the one-sample Monte-Carlo
/// Fisher; keys as of sample_labels(). targets: as the outputs; they may be the same memory. A NaN
/// gives 0.
void sample_bits(Context& ctx, ConstTensorView outputs, SampleKey key, TensorView targets);

}  // namespace dkfac::nn
