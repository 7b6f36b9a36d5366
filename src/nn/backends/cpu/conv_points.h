#pragma once

#include "nn/backends/conv_backend.h"

/// Convolutions that read one pixel per output, as products of matrices whose rows are pixels,
/// without patches or reordered weights. f64 and f32; arguments as in ConvBackend.
namespace dkfac::nn::cpu {

/// Whether the kernel is 1x1 without padding, in one group; any stride.
[[nodiscard]] bool is_pointwise(const ConvShape& shape);

/// Whether there are few pixels and large weights, so that reordering or traversing the weights
/// costs more than patches.
[[nodiscard]] bool has_few_pixels(const ConvShape& shape);

void pointwise_forward(Context& ctx, const ConvShape& shape, ConstTensorView x,
                       ConstTensorView weight, ConstTensorView bias, TensorView y);
void pointwise_backward_weights(Context& ctx, const ConvShape& shape, ConstTensorView x,
                                ConstTensorView dy, TensorView dweight, TensorView dbias);
void pointwise_backward_data(Context& ctx, const ConvShape& shape, ConstTensorView dy,
                             ConstTensorView weight, TensorView dx);

}  // namespace dkfac::nn::cpu
