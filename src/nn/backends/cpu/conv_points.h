#pragma once

#include "nn/backends/conv_backend.h"

/// Convolutions that look at one pixel per output as products of matrices whose rows are pixels: no
/// patches, no reordered weights. f64 and f32; arguments as in ConvBackend.
namespace dkfac::nn::cpu {

/// Kernel 1x1, no padding, one group; any stride.
[[nodiscard]] bool is_pointwise(const ConvShape& shape);

/// Few pixels and large weights: to reorder the weights, or to walk them, costs more than patches.
[[nodiscard]] bool has_few_pixels(const ConvShape& shape);

void pointwise_forward(Context& ctx, const ConvShape& shape, ConstTensorView x,
                       ConstTensorView weight, ConstTensorView bias, TensorView y);
void pointwise_backward_weights(Context& ctx, const ConvShape& shape, ConstTensorView x,
                                ConstTensorView dy, TensorView dweight, TensorView dbias);
void pointwise_backward_data(Context& ctx, const ConvShape& shape, ConstTensorView dy,
                             ConstTensorView weight, TensorView dx);

}  // namespace dkfac::nn::cpu
