#pragma once

#include "dkfac/core/context.h"
#include "dkfac/core/random.h"
#include "dkfac/core/tensor_view.h"

/// The functions of losses that each backend defines under the same names: one missing is a link
/// error.

/// Loops on the host.
namespace dkfac::nn::cpu {
#include "nn/backends/backend_loss.inc"
/// A label out of range makes its row NaN.
void soften_labels(ConstTensorView labels, double smoothing, TensorView targets);
void draw_labels(ConstTensorView logits, const SampleKey& key, TensorView labels);
}  // namespace dkfac::nn::cpu

/// Device kernels, or stubs that throw DeviceError.
namespace dkfac::nn::cuda {
#include "nn/backends/backend_loss.inc"
void soften_labels(Context& ctx, ConstTensorView labels, double smoothing, TensorView targets);
void draw_labels(Context& ctx, ConstTensorView logits, const SampleKey& key, TensorView labels);
}  // namespace dkfac::nn::cuda
