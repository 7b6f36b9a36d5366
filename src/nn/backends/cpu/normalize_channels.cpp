#include "nn/backends/cuda/normalize_channels.h"

#include "nn/backends/backend_normalize.h"
#include "nn/backends/cpu/parallel.h"
#include "nn/backends/dtype.h"

namespace dkfac::nn::cpu {

#include "nn/backends/channel_kernels.inc"

void train_moments(Context& ctx, const NormShape& s, ConstTensorView x,
                   const NormChannels& channels, const NormMoments& out) {
  Scratch scratch(ctx);
  const TensorView variance = scratch.take(Shape{s.groups, s.channels}, DType::f64);
  batch_moments(ctx, s, x, out.mean, out.rest, variance);
  finish_moments(ctx, s, variance, channels, out);
}

void train_gradients(Context& ctx, const NormShape& s, ConstTensorView x, const Affine& affine,
                     const OutputGrad& grad, TensorView masked, ConstTensorView gamma,
                     ConstTensorView inv_std, const ChannelGradients& out) {
  gradient_sums(ctx, s, x, affine, grad, masked, out.sum_g, out.sum_g_centered);
  norm_gradients(ctx, s, gamma, inv_std, out.sum_g, out.sum_g_centered, out.scale_grad,
                 out.shift_grad, out.to);
}

}  // namespace dkfac::nn::cpu
